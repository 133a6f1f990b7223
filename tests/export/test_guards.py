"""Guards that torch cannot show in symbols: tried at every size, and run where they do not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from tests.export.exported import assert_parity
from tests.export.modules import TrilBuffer, eager
from torch import Tensor, nn

from attnport.axes import Axis
from attnport.errors import NarrowedRangeError
from attnport.export.capture import onnx_from_module
from attnport.export.dynamic_shapes import bind_example
from attnport.export.export_module import export_module
from attnport.export.passes import run_passes

WIDTH = 32
AXES = {"batch": Axis("batch", 1, 2, 4), "seq": Axis("seq", 1, 5, 64)}


class RelativeShift(nn.Module):
    """XLNet's: scores of 2n - 1 distances, shifted by a view of other sizes."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.size(1)
        scores = x.unsqueeze(1) * torch.arange(1, 2 * n, dtype=x.dtype).view(1, 2 * n - 1, 1, 1)
        shifted = scores.transpose(1, 2).reshape(x.size(0), 2 * n - 1, n, WIDTH)
        return shifted[:, :n].sum(1)


class OtherwiseAt(nn.Module):
    """Another computation at one length alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 3 if x.size(1) == 64 else x * 2


class OnOddLengths(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.size(1) % 2 == 1 else x * 3


class FailsAt(nn.Module):
    """Fails by itself at one length."""

    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) == 1:
            raise ValueError("one token is too few")
        return TrilBuffer.forward(self.inner, x) if x.size(1) else x

    def __init__(self) -> None:
        super().__init__()
        self.inner = TrilBuffer(WIDTH, 2, eager)


def captured(module: nn.Module, axes: Mapping[str, Axis] = AXES) -> ir.Model:
    torch.manual_seed(0)
    example = bind_example(
        module.eval(), (torch.randn(2, 5, WIDTH),), {}, ({0: "batch", 1: "seq"},), axes
    )
    model = onnx_from_module(module, example, axes, 18)
    run_passes(model, axes)
    return model


@pytest.mark.parametrize("make", [lambda: TrilBuffer(WIDTH, 2, eager), RelativeShift])
def test_a_guard_that_holds_or_changes_nothing_is_accepted(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    bundle = export_module(
        make(), (torch.randn(2, 5, WIDTH),), tmp_path / "bundle",
        dynamic_shapes=({0: "batch", 1: "seq"},), axes=AXES,
    )  # fmt: skip
    assert bundle.manifest.inputs[0].shape == ("batch", "seq", WIDTH)
    lengths = {case.sizes["seq"] for case in bundle.manifest.cases}
    assert {1, 64} <= lengths  # where the guards do not hold
    assert_parity(bundle)


def test_a_length_at_which_something_else_is_computed_is_refused() -> None:
    with pytest.raises(NarrowedRangeError, match=r"something else than the module at .*seq 64"):
        captured(OtherwiseAt())


def test_a_guard_that_fails_at_many_sizes_is_named_with_one() -> None:
    with pytest.raises(NarrowedRangeError) as caught:
        captured(OnOddLengths())
    message = str(caught.value)
    assert "it must be that" in message
    assert "seq" in message
    assert "fails at seq 2" in message
    assert __file__ in message


def test_a_module_that_fails_at_its_smallest_size_is_refused() -> None:
    with pytest.raises(NarrowedRangeError, match=r"fails at batch 1, seq 1 .*one token"):
        captured(FailsAt())


def test_huge_ranges_are_tried_at_their_ends_and_between() -> None:
    """(2n - 1) % n at every n up to a billion would take hours."""
    axes = {**AXES, "seq": Axis("seq", 1, 5, 1 << 30)}
    assert len(captured(RelativeShift(), axes).graph)
