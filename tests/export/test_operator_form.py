"""The Attention operator: its masks where numbers hide, its softmax's precision."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from onnx import TensorProto
from tests.export.exported import assert_parity
from tests.export.nets import op_types, passed, self_attention
from tests.export.test_passes_keep_numbers import assert_kept
from tests.export.ways_masks import NUMBERS
from tests.export.ways_scores import operator_attention
from torch import Tensor, nn
from torch.nn import functional

from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module

WIDTH, HEADS = 32, 2


class Padded(nn.Module):
    """SDPA with (1 - m)·finfo.min, and, if asked, causality by -inf added to it."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        if self.causal:
            n = x.size(1)
            visible = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
            bias = bias + torch.where(visible, 0.0, -math.inf).to(x.dtype)
        context = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        output: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return output


def exported(module: nn.Module, folder: Path, dtype: str = "float32") -> Bundle:
    torch.manual_seed(0)
    return export_module(
        module, (torch.randn(2, 5, WIDTH), torch.ones(2, 5, dtype=torch.int64)), folder,
        dynamic_shapes=({0: "batch", 1: "seq"}, {0: "batch", 1: "seq"}),
        axes={"batch": (1, 2, 3), "seq": (1, 5, 8)}, dtype=dtype, form="attention",
    )  # fmt: skip


def operators(bundle: Bundle) -> list[str]:
    import onnx

    return op_types(onnx.load(bundle.model_path))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_row_hidden_by_the_lowest_number_gives_the_mean_in_onnxruntime(
    dtype: str, tmp_path: Path
) -> None:
    bundle = exported(Padded(causal=False), tmp_path / "bundle", dtype)
    assert "Attention" in operators(bundle)
    assert "dead-row" in [case.mask for case in bundle.manifest.cases]
    assert_parity(bundle)


def test_what_the_operator_cannot_say_is_the_pattern(tmp_path: Path) -> None:
    """A captured call is no operator of any file, so that it cannot be left as it is."""
    bundle = exported(Padded(causal=True), tmp_path / "bundle")
    assert "Attention" not in operators(bundle)
    notes = [note for record in bundle.manifest.passes for note in record.notes]
    assert any("no Attention operator, since its mask sets" in note for note in notes)
    assert_parity(bundle)


def test_several_numbers_are_left_to_the_pattern() -> None:
    model = self_attention(hide=NUMBERS["causal finfo.min, then -1e4"], opset=23)
    after, done = passed(model, "attention")
    assert "Attention" not in op_types(after)
    assert "can only add" in " ".join(done.write.notes)


def test_the_precision_of_the_operator_s_softmax_is_kept() -> None:
    model = operator_attention(dtype="float16", softmax_precision=TensorProto.FLOAT)
    after = assert_kept(model)
    kinds = op_types(after)
    at = kinds.index("Softmax")
    assert (kinds[at - 1], kinds[at + 1]) == ("Cast", "Cast")


def test_a_precision_that_is_the_operands_own_is_no_cast() -> None:
    after = assert_kept(operator_attention(softmax_precision=TensorProto.FLOAT))
    assert "Cast" not in op_types(after)
