"""From a module whose author did not think of us to a bundle, and what it says."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from tests.export.exported import assert_parity
from tests.export.modules import Batched, Separate, Unbound, eager, eager_causal, sdpa
from torch import Tensor, nn

from attnport.errors import ModuleError
from attnport.export.bundle import Bundle
from attnport.export.cases import DEFAULT_BUDGET_BYTES
from attnport.export.export_module import export_module
from attnport.models import DecoderBlock, MaskedMultiHeadSelfAttention, MultiHeadSelfAttention

WIDTH, HEADS = 32, 2
AXES = {"batch": (1, 2, 3), "seq": (1, 5, 9)}
TOKENS = {0: "batch", 1: "seq"}
MASK = {0: "batch", 2: "seq", 3: "seq"}


def x(batch: int = 2, seq: int = 5) -> Tensor:
    return torch.randn(batch, seq, WIDTH, generator=torch.Generator().manual_seed(0))


def visible() -> Tensor:
    return torch.ones(2, 1, 5, 5, dtype=torch.bool)


def exported(module: nn.Module, out: Path, *args: Tensor, **options: Any) -> Bundle:
    torch.manual_seed(0)
    options.setdefault("dynamic_shapes", (TOKENS, MASK)[: len(args)])
    options.setdefault("axes", AXES)
    return export_module(module, args, out / "bundle", **options)


class Alone(nn.Module):
    """torch.nn.MultiheadAttention in the way its documentation shows."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return output


def fused(bundle: Bundle) -> tuple[list[bool], list[str], list[bool]]:
    """What is recognised, the kinds of projection groups, and which of them are merged."""
    manifest = bundle.manifest
    return (
        [info.recognised for info in manifest.attentions],
        [group.kind for group in manifest.projection_groups],
        [group.merged for group in manifest.projection_groups],
    )


def test_multihead_attention_of_torch_with_padding(tmp_path: Path) -> None:
    padding = torch.zeros(2, 5, dtype=torch.bool)
    bundle = exported(Alone(), tmp_path, x(), padding, dynamic_shapes=(TOKENS, TOKENS))
    assert fused(bundle) == ([True], ["qkv"], [True])
    (info,) = bundle.manifest.attentions
    assert (info.heads, info.head_size, info.dead_rows) == (HEADS, WIDTH // HEADS, True)
    assert {spec.name: spec.role for spec in bundle.manifest.inputs} == {
        "x": "activation", "padding": "mask",
    }  # fmt: skip
    assert_parity(bundle)


def test_encoder_layer_of_torch(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    bundle = exported(layer, tmp_path, x())
    assert fused(bundle) == ([True], ["qkv"], [True])
    assert bundle.manifest.inputs[0].name == "src"
    assert bundle.name == "TransformerEncoderLayer"
    assert_parity(bundle)


def test_decoder_layer_of_torch(tmp_path: Path) -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=True)
    bundle = exported(
        layer, tmp_path, x(), x(seq=7), dynamic_shapes=(TOKENS, {0: "batch", 1: "memory"}),
        axes={**AXES, "memory": (1, 7, 11)},
    )  # fmt: skip
    assert fused(bundle) == ([True, True], ["qkv", "kv"], [True, True])
    assert_parity(bundle)


def test_a_decoder_block_of_ours_with_every_mask(tmp_path: Path) -> None:
    memory_mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    bundle = exported(
        DecoderBlock(WIDTH, HEADS), tmp_path, x(), x(seq=7), memory_mask, visible(),
        dynamic_shapes=(TOKENS, {0: "batch", 1: "memory"}, {0: "batch", 3: "memory"}, MASK),
        axes={**AXES, "memory": (1, 7, 11)},
    )  # fmt: skip
    assert fused(bundle) == ([True, True], ["qkv", "kv"], [True, True])
    causal = [info.causal for info in bundle.manifest.attentions]
    assert causal == [True, False]
    assert all(info.dead_rows for info in bundle.manifest.attentions)
    assert "between-dead-row" in [record.name for record in bundle.manifest.cases]
    assert_parity(bundle)


USERS_FILE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, tokens, *, keep=None):
        b, n, d = tokens.shape
        q, k, v = self.qkv(tokens).view(b, n, 3, 2, 16).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) / 4.0
        if keep is not None:
            att = att.masked_fill(keep == 0, float("-inf"))
        return self.out((att.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
"""


@pytest.fixture
def users_module(tmp_path: Path) -> nn.Module:
    """A module in a file of the user's own."""
    file = tmp_path / "users_attention.py"
    file.write_text(USERS_FILE)
    spec = importlib.util.spec_from_file_location("users_attention", file)
    assert spec is not None
    assert spec.loader is not None
    users = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(users)
    module: nn.Module = users.Attention()
    return module


def test_a_user_s_module_with_keyword_inputs_only(users_module: nn.Module, tmp_path: Path) -> None:
    bundle = exported(
        users_module, tmp_path,
        kwargs={"tokens": x(), "keep": torch.ones(2, 1, 5, 5)},
        dynamic_shapes={"tokens": TOKENS, "keep": MASK},
    )  # fmt: skip
    assert fused(bundle) == ([True], ["qkv"], [True])
    roles = {spec.name: (spec.role, spec.shape) for spec in bundle.manifest.inputs}
    assert roles == {
        "tokens": ("activation", ("batch", "seq", WIDTH)),
        "keep": ("mask", ("batch", 1, "seq", "seq")),
    }
    assert_parity(bundle)


HALVES = {
    "sdpa": (Separate, sdpa), "eager": (Unbound, eager), "causal": (Separate, eager_causal),
}  # fmt: skip


@pytest.mark.parametrize("way", HALVES)
def test_half_precision(way: str, tmp_path: Path) -> None:
    make, attend = HALVES[way]
    module = make(WIDTH, HEADS, attend)
    bundle = exported(module, tmp_path, x(), visible(), dtype="float16")
    assert bundle.dtype == "float16"
    assert {spec.dtype for spec in bundle.manifest.inputs} == {"float16", "bool"}
    assert fused(bundle) == ([True], ["qkv"], [True])
    assert_parity(bundle)
    assert next(module.parameters()).dtype == torch.float32  # the user's own stays as it was


def test_batched_products_of_three_axes(tmp_path: Path) -> None:
    bundle = exported(Batched(WIDTH, HEADS, eager), tmp_path, x())
    assert fused(bundle) == ([True], ["qkv"], [True])
    assert_parity(bundle)


def test_form_attention(tmp_path: Path) -> None:
    module = MaskedMultiHeadSelfAttention(WIDTH, HEADS, bias=True)
    bundle = exported(module, tmp_path, x(), visible(), form="attention")
    types = [node.op_type for node in onnx.load(bundle.model_path).graph.node]
    assert types.count("Attention") == 1
    assert "Softmax" not in types
    assert (bundle.manifest.form, bundle.manifest.opset) == ("attention", 23)
    assert_parity(bundle)


# What the bundle says.


def test_the_description_of_the_shared_bundle(exported: Bundle) -> None:
    manifest = exported.manifest
    assert (manifest.name, manifest.dtype, manifest.form) == (
        "MultiHeadSelfAttention", "float32", "pattern",
    )  # fmt: skip
    assert manifest.opset == 18
    assert [spec.name for spec in manifest.outputs] == ["output"]
    assert set(manifest.files) == {"model.onnx", *(c.file for c in manifest.cases)}
    assert {"torch", "onnx", "numpy", "attnport"} <= set(manifest.versions)
    changed = {record.name: record.changed for record in manifest.passes}
    assert changed["merge_qkv"] == changed["write_pattern"] == 1
    proto = onnx.load(exported.model_path)
    assert [value.name for value in proto.graph.input] == ["x"]
    assert not [node for node in proto.graph.node if node.domain]


def test_only_standard_operators_and_one_matrix_for_qkv(exported: Bundle) -> None:
    proto = onnx.load(exported.model_path)
    assert {opset.domain for opset in proto.opset_import} == {""}
    shapes = sorted(tuple(t.dims) for t in proto.graph.initializer if len(t.dims) == 2)
    assert shapes == [(WIDTH, WIDTH), (WIDTH, 3 * WIDTH)]


class Several(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x + 1, {"twice": x * 2, "thrice": x * 3}


def test_outputs_are_numbered(tmp_path: Path) -> None:
    bundle = exported(Several(), tmp_path, x())
    names = [spec.name for spec in bundle.manifest.outputs]
    assert names == ["output_0", "output_1", "output_2"]
    assert_parity(bundle)
    session = onnxruntime.InferenceSession(bundle.model_path)
    ones = torch.ones(1, 1, WIDTH).numpy()
    results = session.run(names, {"x": ones})
    assert [float(result.ravel()[0]) for result in results] == [2.0, 2.0, 3.0]


class NamedOutput(nn.Module):
    """An input with the name that an output would get."""

    def forward(self, output: Tensor) -> Tensor:
        return output * 2


def test_an_input_keeps_the_name_output(tmp_path: Path) -> None:
    bundle = exported(NamedOutput(), tmp_path, x())
    names = [spec.name for spec in (*bundle.manifest.inputs, *bundle.manifest.outputs)]
    assert names[0] == "output"
    assert len(set(names)) == 2
    assert_parity(bundle)


def test_roles_are_the_user_s_to_say(tmp_path: Path) -> None:
    bundle = exported(Several(), tmp_path, x(), inputs={"x": "cache"})
    assert bundle.manifest.inputs[0].role == "cache"


def test_the_user_s_module_is_not_changed(tmp_path: Path) -> None:
    module = MultiHeadSelfAttention(WIDTH, HEADS).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    exported(module, tmp_path, x(), dtype="float16", max_cases=1)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


# Sizes on disk.


class Tied(nn.Module):
    """An embedding that is the output's matrix too, of more than 1 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10_000, WIDTH)
        self.attention = MultiHeadSelfAttention(WIDTH, HEADS)
        self.head = nn.Linear(WIDTH, 10_000, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.attention(self.table(tokens)))
        return output


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(
        Tied(), tmp_path_factory.mktemp("tied"), torch.zeros(2, 5, dtype=torch.int64),
        dynamic_shapes=(TOKENS,),
    )  # fmt: skip


def test_weights_are_stored_once(tied: Bundle) -> None:
    """A tied matrix too, though one use is of its transpose."""
    unique = sum(p.numel() for p in Tied().parameters()) * 4
    files = [tied.model_path, tied.model_path.with_name("model.onnx.data")]
    assert sum(file.stat().st_size for file in files) < unique * 1.1
    assert tied.manifest.weights_sha256 == tied.manifest.files["model.onnx.data"]
    assert_parity(tied)


def test_token_ids_stay_below_the_number_of_tokens(tied: Bundle) -> None:
    (spec,) = tied.manifest.inputs
    assert (spec.role, spec.high) == ("token_ids", 10_000)
    ids = [tied.load_case(record.name).inputs["tokens"] for record in tied.manifest.cases]
    assert max(int(array.max()) for array in ids) > 1000


def test_cases_stay_within_the_budget(tmp_path: Path) -> None:
    """An output of a vocabulary's width on long sequences: what does not fit is said."""
    bundle = exported(
        nn.Linear(WIDTH, 4000), tmp_path, x(), dynamic_shapes=(TOKENS,),
        axes={"batch": (1, 2, 8), "seq": (1, 16, 400)},
    )  # fmt: skip
    sizes = [file.stat().st_size for file in (bundle.path / "cases").iterdir()]
    assert 0 < sum(sizes) <= DEFAULT_BUDGET_BYTES * 1.01
    assert any(note.startswith("max: ") for note in bundle.manifest.cases_left_out)
    assert len(sizes) == len(bundle.manifest.cases)


class NotFinite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + math.inf - math.inf


def test_a_module_that_is_not_finite_itself_is_exported_and_said(tmp_path: Path) -> None:
    bundle = exported(NotFinite(), tmp_path, x())
    notes = [record.references["output"].note for record in bundle.manifest.cases]
    assert all("its own fault" in note for note in notes)


def test_unused_inputs_are_kept_in_the_graph_or_refused(tmp_path: Path) -> None:
    """An input that the module ignores: it is there to be fed, as the module has it."""

    class Ignores(nn.Module):
        def forward(self, x: Tensor, extra: Tensor) -> Tensor:
            return x * 2

    bundle = exported(Ignores(), tmp_path, x(), x(), dynamic_shapes=(TOKENS, TOKENS))
    assert [spec.name for spec in bundle.manifest.inputs] == ["x", "extra"]
    assert_parity(bundle)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    exported(Several(), tmp_path, x(), progress=lambda *step: told.append(step))
    fractions = [fraction for _, fraction in told]
    assert told[0] == ("capturing the module", 0.0)
    assert told[-1] == ("done", 1.0)
    assert fractions == sorted(fractions)


@pytest.mark.parametrize(
    ("module", "args", "said"),
    [
        (nn.Identity, (torch.ones(2, 4),), "the class Identity is no module: give an instance"),
        (3, (torch.ones(2, 4),), "3 is no module"),
        (nn.Identity(), torch.ones(2, 4), r"as a tuple, \(tensor,\)"),
    ],
)
def test_what_is_no_module_or_no_tuple_is_refused(
    module: Any, args: Any, said: str, tmp_path: Path
) -> None:
    axes = {"batch": (1, 2, 3)}
    with pytest.raises(ModuleError, match=said):
        export_module(module, args, tmp_path / "b", dynamic_shapes=({0: "batch"},), axes=axes)
