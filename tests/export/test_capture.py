"""What cannot be captured as asked is refused before anything is written, with the line that asked."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tests.export.evaluation import run_in_ort
from torch import Tensor, nn
from torch.nn import functional

from attnport.axes import Axis
from attnport.errors import ModuleError, NarrowedRangeError
from attnport.export import capture_operator
from attnport.export.capture import _require_declared_ranges, onnx_from_module
from attnport.export.dynamic_shapes import bind_example, torch_shapes
from attnport.export.export_module import export_module
from attnport.export.module_forms import module_in_dtype
from attnport.export.passes import run_passes

WIDTH = 16
AXES = {"batch": Axis("batch", 1, 2, 4), "seq": Axis("seq", 1, 5, 32)}


def captured(
    module: nn.Module,
    *args: Tensor,
    axes: Mapping[str, Axis] = AXES,
    shapes: Sequence[Any] = ({0: "batch", 1: "seq"},),
    opset: int = 18,
) -> ir.Model:
    used = {a: axes[a] for entry in shapes if entry for a in entry.values()}
    example = bind_example(module, args, {}, shapes, used)
    return onnx_from_module(module.eval(), example, used, opset)


def sizes(model: ir.Model) -> list[str]:
    (x, *_) = model.graph.inputs
    assert x.shape is not None
    return [str(dim) if isinstance(dim, int) else str(dim.value) for dim in x.shape]


def line_of(module: type[nn.Module], text: str) -> int:
    lines, first = inspect.getsourcelines(module)
    return first + next(i for i, line in enumerate(lines) if text in line)


class BranchOnLength(nn.Module):
    """Two computations, chosen by a Python condition on the size."""

    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) <= 6:
            return x * 2
        return x * 3


class OnlyShort(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.size(1) < 10
        return x * 2


class FixedLength(nn.Module):
    """A table of positions that only fits one length."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


class DependsOnData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x * 3


class NoTranslation(nn.Module):
    """An operator that torch.onnx has no translation for."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.aten.igamma(x.abs(), x.abs())
        return output


class ForgotTheTranspose(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x, -1)


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no weights were loaded")


class Uncopyable(nn.Module):
    def __deepcopy__(self, memo: object) -> Uncopyable:
        raise TypeError("holds a lock")

    def forward(self, x: Tensor) -> Tensor:
        return x


X = torch.randn(2, 5, WIDTH)


def test_symbols_of_the_graph_are_the_axes() -> None:
    assert sizes(captured(nn.Linear(WIDTH, WIDTH), X)) == ["batch", "seq", str(WIDTH)]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("seq", [1, 5])
def test_an_example_of_size_one_stays_dynamic(batch: int, seq: int) -> None:
    model = captured(nn.Linear(WIDTH, WIDTH), torch.randn(batch, seq, WIDTH))
    assert sizes(model) == ["batch", "seq", str(WIDTH)]


def test_a_graph_of_an_example_of_size_one_is_right_at_others() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    x = torch.randn(1, 1, WIDTH)

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = module

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return output

    model = captured(Self(), x)
    run_passes(model, AXES)
    proto = ir.serde.serialize_model(model)
    for batch, seq in ((1, 1), (3, 7)):
        array = np.zeros((batch, seq, WIDTH), np.float32)
        (result,) = run_in_ort(proto, {"x": array})
        assert result.shape == (batch, seq, WIDTH)


@pytest.mark.parametrize(
    ("module", "text", "left"),
    [(BranchOnLength, "if x.size(1) <= 6", "6"), (OnlyShort, "assert x.size(1) < 10", "9")],
)
def test_a_narrowed_range_is_refused_with_the_line_that_asked(
    module: type[nn.Module], text: str, left: str
) -> None:
    with pytest.raises(NarrowedRangeError) as caught:
        captured(module(), X)
    message = str(caught.value)
    assert "seq" in message
    assert "1 to 32" in message
    assert f"to {left}" in message
    assert f"{__file__}:{line_of(module, text)}" in message
    assert "narrow the axis" in message


def test_the_other_branch_is_refused_as_well() -> None:
    """The example decides which half of the range is left; neither is what was declared."""
    with pytest.raises(NarrowedRangeError, match="7 to 32"):
        captured(BranchOnLength(), torch.randn(2, 9, WIDTH))


def test_a_range_within_one_branch_is_exported() -> None:
    axes = {**AXES, "seq": Axis("seq", 1, 5, 6)}
    assert sizes(captured(BranchOnLength(), X, axes=axes))[1] == "seq"


def test_a_user_s_file_elsewhere_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch 2.13 cuts from a path what it shares with its own."""
    file = tmp_path / "users_branch.py"
    file.write_text(inspect.getsource(BranchOnLength).replace("nn.", "torch.nn."))
    file.write_text("import torch\nfrom torch import Tensor\n" + file.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("users_branch").BranchOnLength
    with pytest.raises(NarrowedRangeError) as caught:
        captured(module(), X)
    assert f"asked at {file}:" in str(caught.value)


def test_a_length_that_the_module_fixes() -> None:
    with pytest.raises(NarrowedRangeError, match=r"seq.*(fixed at|only).*5"):
        captured(FixedLength(), X)


def test_a_length_that_is_fixed_by_the_axis_too_is_exported() -> None:
    axes = {**AXES, "seq": Axis("seq", 5, 5, 5)}
    assert sizes(captured(FixedLength(), X, axes=axes)) == ["batch", "5", str(WIDTH)]


@pytest.mark.parametrize(("module", "narrowed"), [(BranchOnLength(), True), (nn.ReLU(), False)])
def test_ranges_are_compared_after_a_capture_that_succeeded(
    module: nn.Module, narrowed: bool
) -> None:
    """Where torch narrows without a word, as torch.onnx's own capture does."""
    axes = {"batch": Axis("batch", 2, 2, 4), "seq": Axis("seq", 2, 5, 32)}
    example = bind_example(module, (X,), {}, ({0: "batch", 1: "seq"},), axes)
    shapes = torch_shapes(example, axes, automatic=True)
    program = torch.export.export(module, example.args, dynamic_shapes=shapes, strict=False)
    with (
        pytest.raises(NarrowedRangeError, match=r"seq of x.*2 to 6 only")
        if narrowed
        else nullcontext()
    ):
        _require_declared_ranges(program, example, axes)


def test_a_module_that_depends_on_data() -> None:
    with pytest.raises(ModuleError, match=r"(?s)cannot capture DependsOnData.*data") as caught:
        captured(DependsOnData(), X)
    assert not isinstance(caught.value, NarrowedRangeError)
    line = line_of(DependsOnData, "if x.sum()")
    assert f"{Path(__file__).name}:{line}): ask for no value of a tensor" in str(caught.value)


def test_torch_adds_nothing_to_the_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    for module in (DependsOnData(), ForgotTheTranspose()):
        with pytest.raises(ModuleError):
            captured(module, X)
    assert capfd.readouterr() == ("", "")


def test_an_operator_without_a_translation() -> None:
    with pytest.raises(ModuleError, match=r"no translation for NoTranslation.*igamma"):
        captured(NoTranslation(), X)


def test_a_module_that_fails_itself() -> None:
    with pytest.raises(ModuleError, match=r"Broken itself fails .*no weights were loaded"):
        captured(Broken(), X)


def test_a_module_that_multiplies_what_does_not_fit() -> None:
    shape = re.escape(f"x float32 {tuple(X.shape)}")
    line = line_of(ForgotTheTranspose, "x @ x")
    where = re.escape(f"{Path(__file__).name}:{line}")
    with pytest.raises(ModuleError, match=rf"itself fails on .* {shape}: .*{where}"):
        captured(ForgotTheTranspose(), X)


def test_a_module_that_cannot_be_copied() -> None:
    with pytest.raises(ModuleError, match=r"Uncopyable cannot be copied.*holds a lock"):
        module_in_dtype(Uncopyable(), "float32")


REFUSED = [BranchOnLength, DependsOnData, NoTranslation, Broken, Uncopyable]


@pytest.mark.parametrize("module", REFUSED)
def test_nothing_is_left_behind(module: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ModuleError) as caught:
        export_module(
            module(), (X,), tmp_path / "bundle",
            dynamic_shapes=({0: "batch", 1: "seq"},), axes=AXES,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert "\n" not in str(caught.value)  # one sentence, whatever torch wrote
    assert "\x1b" not in str(caught.value)


class Sdpa(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, **self.options)


def test_sdpa_is_captured_whole() -> None:
    (node,) = captured(Sdpa(is_causal=True, scale=0.5), X.view(2, 5, 2, 8)).graph
    assert (node.domain, node.op_type) == (capture_operator.DOMAIN, capture_operator.OP_TYPE)
    assert node.attributes.get_int("is_causal") == 1
    assert node.attributes.get_float("scale") == 0.5


def test_sdpa_of_three_axes_is_written_and_dynamic() -> None:
    """torch.onnx alone refuses it: one head, (B,N,D)."""
    model = captured(Sdpa(), X)
    run_passes(model, AXES)
    assert {node.op_type for node in model.graph} >= {"Softmax", "MatMul"}
    (result,) = run_in_ort(ir.serde.serialize_model(model), {"x": np.ones((3, 7, WIDTH), "f4")})
    np.testing.assert_allclose(result, 1.0)


def test_the_fast_path_is_left_as_it_was() -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    captured(nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), X)
    assert torch.backends.mha.get_fastpath_enabled() == before


class IntegerMask(nn.Module):
    """`1.0 - mask` of a mask of whole numbers, as BERT and XLNet hide keys."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + (1.0 - mask)[:, :, None] * -1e4


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.float32])
def test_a_number_less_a_mask_of_whole_numbers(kind: torch.dtype) -> None:
    mask = torch.ones(2, 5, dtype=kind)
    shapes = ({0: "batch", 1: "seq"}, {0: "batch", 1: "seq"})
    example = bind_example(IntegerMask(), (X, mask), {}, shapes, AXES)
    model = onnx_from_module(IntegerMask(), example, AXES, 18)
    visible = np.array([[1, 1, 0, 1, 0]]).astype(str(kind).rpartition(".")[2])
    x = np.zeros((1, 5, WIDTH), np.float32)
    (result,) = run_in_ort(ir.to_proto(model), {"x": x, "mask": visible})
    assert result[0, :, 0].tolist() == [0.0, 0.0, -1e4, 0.0, -1e4]
