"""What cannot be exported right is refused in a sentence, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.cases.by_hand import AXES, BFLOAT, Chunked, D, Packed, X, x_at
from tests.cases.road import Case, build, export, fusion_of
from torch import nn

from attnport.engines.open import open_engine
from attnport.errors import AttnportError, NarrowedRangeError, UnsupportedDtypeError


class Loop(Packed):
    """Chunks of four tokens by a loop in Python, which only the exported length goes through."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = [
            F.scaled_dot_product_attention(
                q[:, :, i : i + 4], k[:, :, i : i + 4], v[:, :, i : i + 4]
            )
            for i in range(0, q.shape[2], 4)
        ]
        return torch.cat(parts, 2)


class Branch(Packed):
    """Another attention for long inputs."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n = q.shape[2]
        if n <= 7:
            return F.scaled_dot_product_attention(q, k, v)
        places = torch.arange(n)
        near = (places[:, None] - places[None, :]).abs() < 7
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


class View(Packed):
    """A view after a transposition, which the exported strides do not allow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 2, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.attend(q, k, v).transpose(1, 2).view(b, n, D)


def _refused(make: Callable[[], nn.Module], folder: Path, **options: object) -> AttnportError:
    case = Case("refused", make, x_at, (X,), AXES, options=options)
    with pytest.raises(AttnportError) as caught:
        export(case, "float32", folder)
    assert list(folder.iterdir()) == []
    return caught.value


@pytest.mark.parametrize("make", [Loop, Branch])
def test_a_length_that_python_looked_at(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    error = _refused(make, tmp_path)
    assert isinstance(error, NarrowedRangeError)
    assert " n" in str(error)


def test_a_view_that_the_strides_do_not_allow(tmp_path: Path) -> None:
    assert "view" in str(_refused(View, tmp_path))


@pytest.mark.parametrize("opset", [14, 17, 26])
def test_an_opset_that_would_be_stamped_wrongly(opset: int, tmp_path: Path) -> None:
    assert f"opset {opset}" in str(_refused(Chunked, tmp_path, opset=opset))


def test_bfloat16_builds_and_onnx_runtime_says_what_it_lacks(tmp_path: Path) -> None:
    bundle = export(BFLOAT, "bfloat16", tmp_path)
    assert [attention.fused for attention in fusion_of(build(bundle)).attentions] == [True]
    with pytest.raises(UnsupportedDtypeError, match="bfloat16"):
        open_engine(bundle, "ort-cpu")
