"""An axis that is the sum of others, from the example to the cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnport.axes import axes_by_name
from attnport.errors import ModuleError, NarrowedRangeError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.case_sizes import capped, first_sizes, further_sizes, largest_sizes
from attnport.export.export_module import export_module

RANGES: dict[str, Any] = {"past": (0, 5, 9), "seq": (1, 3, 6), "total": "past + seq"}
AXES = axes_by_name(RANGES)


class Joined(nn.Module):
    """New rows behind old ones, weighted by what is as long as both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, weights: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """(T,), (P,4), (N,4) -> (T,4)."""
        rows: Tensor = self.linear(torch.cat([old, new]))
        return weights[:, None] * rows


class Doubled(nn.Module):
    """What is declared as long as both is twice as long as the new ones."""

    def forward(self, weights: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """(2N,), (P,4), (N,4) -> (4,)."""
        return (weights[:, None] * torch.cat([new, new])).sum(0) + old.sum(0)


class Unrelated(nn.Module):
    """Nothing in the module ties the lengths to each other."""

    def forward(self, weights: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """(T,), (P,4), (N,4) -> (4,)."""
        return weights.sum() + old.sum(0) + new.sum(0)


def exported(
    module: nn.Module,
    out: Path,
    past: int = 5,
    seq: int = 3,
    total: int | None = None,
    **more: Any,
) -> Bundle:
    sizes = (past + seq if total is None else total, past, seq)
    args = (torch.randn(sizes[0]), torch.randn(sizes[1], 4), torch.randn(sizes[2], 4))
    shapes = ({0: "total"}, {0: "past"}, {0: "seq"})
    options: dict[str, Any] = {"dynamic_shapes": shapes, "axes": RANGES} | more
    return export_module(module, args, out, **options)


@pytest.mark.parametrize(("past", "seq"), [(5, 3), (1, 1), (0, 2)])
def test_it_is_found_named_and_kept(past: int, seq: int, tmp_path: Path) -> None:
    bundle = exported(Joined(), tmp_path / "b", past, seq)
    manifest = bundle.manifest
    assert [spec.shape for spec in manifest.inputs] == [("total",), ("past", 4), ("seq", 4)]
    assert manifest.outputs[0].shape == ("total", 4)
    assert manifest.derived_axes == {"total": ("past", "seq")}
    assert bundle.axes["total"] == AXES["total"]
    assert {(case.sizes["past"], case.sizes["seq"]) for case in manifest.cases} >= {
        (0, 1), (0, 2), (1, 2), (9, 6),
    }  # fmt: skip
    for case in manifest.cases:
        assert case.sizes["total"] == case.sizes["past"] + case.sizes["seq"]
    assert Bundle.load(bundle.path).axes == bundle.axes


def test_lengths_that_the_module_does_not_tie_are_fine(tmp_path: Path) -> None:
    assert exported(Unrelated(), tmp_path / "b").axes["total"].terms == ("past", "seq")


def test_an_example_that_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"total = past \+ seq, and .* weights has 3 where"):
        exported(Joined(), tmp_path / "b", total=3)


def test_a_module_that_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NarrowedRangeError, match=r"Doubled|total = past"):
        exported(Doubled(), tmp_path / "b", past=3, seq=3)
    axes = {**RANGES, "total": "past + seq + 1"}
    with pytest.raises(ModuleError, match=r"itself fails on the inputs weights float32 \(9,\)"):
        exported(Joined(), tmp_path / "b", total=9, axes=axes)


def test_sizes_never_contradict() -> None:
    small = capped(AXES, {"past": 2})
    assert small["total"].max == 8
    found = [*first_sizes(AXES).values(), *further_sizes(AXES).values()]
    largest = largest_sizes(AXES, lambda sizes: sizes["total"] < 11)
    assert largest is not None
    for sizes in (*found, largest, *first_sizes(small).values()):
        assert sizes["total"] == sizes["past"] + sizes["seq"]
    with pytest.raises(UsageError, match=r"total follows from others .*cap those"):
        capped(AXES, {"total": 4})
