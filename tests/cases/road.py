"""From a module to numbers and a plan, as the cases ask it: right numbers and a build, or a refusal.

A result is right where it lies within the parity bound of the float64 module at inputs of the
case's own, at sizes other than the exported ones, besides the cases that the bundle generates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from attnport.axes import AxisLike
from attnport.engines.build import build_engine
from attnport.engines.open import open_engine
from attnport.engines.plan import EnginePlan, FusionReport
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.export.module_forms import module_in_dtype, to_numpy, torch_dtype
from attnport.export.records import OutputErrors
from attnport.export.reference import Reference
from attnport.validate.bound import bound, incomparable
from attnport.validate.prove import prove
from attnport.validate.requirements import Requirements

Args = tuple[torch.Tensor | None, ...]
Axes = Mapping[str, AxisLike]
HALF_AND_FULL = ("float16", "float32")


@dataclass(frozen=True)
class Case:
    """A module that exporters were reported to get wrong.

    Attributes:
        name: What it is about.
        make: Makes the module, the same every time.
        at: Its inputs at a batch and a sequence size.
        shapes: Which axis stands where, an entry for each input.
        axes: The range of each axis.
        sizes: The batch and sequence sizes to look at; the first is the exported one.
        dtypes: Those in which the mathematics allows a right result.
        options: More arguments of `export_module`.
    """

    name: str
    make: Callable[[], nn.Module]
    at: Callable[[int, int], Args]
    shapes: tuple[Mapping[int, str] | None, ...]
    axes: Axes
    sizes: tuple[tuple[int, int], ...] = ((2, 6), (3, 11), (1, 1))
    dtypes: tuple[str, ...] = HALF_AND_FULL
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().eval()


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def export(case: Case, dtype: str, folder: Path) -> Bundle:
    return export_module(
        case.module(), case.at(*case.sizes[0]), folder / "bundle", dynamic_shapes=case.shapes,
        axes=case.axes, dtype=dtype, name=case.name, **case.options,
    )  # fmt: skip


def require_right_numbers(case: Case, bundle: Bundle) -> None:
    """In ONNX Runtime, the bundle's own cases and the inputs of this one."""
    report = prove(bundle, ["ort-cpu"], require=Requirements(fusion=(), qkv=False))
    assert report.verdict == "proved", [f.message for f in report.findings if f.status == "failed"]
    module = module_in_dtype(case.module(), bundle.dtype)
    reference = Reference(module, bundle.dtype, bundle.manifest.outputs)
    moved = [spec.name for spec in bundle.manifest.inputs if spec.role in ("activation", "cache")]
    with open_engine(bundle, "ort-cpu", threads=1) as engine:
        for size in case.sizes:
            feeds = _feeds(bundle, case.at(*size))
            _require_close(reference, feeds, moved, engine.run(feeds), bundle.dtype)


def _feeds(bundle: Bundle, args: Sequence[torch.Tensor | None]) -> dict[str, np.ndarray]:
    low = torch_dtype(bundle.dtype)
    given = [arg for arg in args if arg is not None]
    cast = [arg.to(low) if arg.is_floating_point() else arg for arg in given]
    names = [spec.name for spec in bundle.manifest.inputs]
    return {name: to_numpy(arg) for name, arg in zip(names, cast, strict=True)}


def _require_close(
    reference: Reference,
    feeds: Mapping[str, np.ndarray],
    moved: Sequence[str],
    results: Mapping[str, np.ndarray],
    dtype: str,
) -> None:
    right = reference.compute(feeds, moved, seed=0)
    for name, truth in right.arrays.items():
        known = right.references[name]
        assert not incomparable(known)
        assert results[name].shape == truth.shape
        assert np.isfinite(results[name]).all()
        error = np.abs(results[name].astype(np.float64) - truth)
        found = OutputErrors(max=float(error.max()), mean=float(error.mean()))
        limit = bound(known, dtype)
        assert (found.max <= limit.max, found.mean <= limit.mean) == (True, True), (found, limit)


def build(bundle: Bundle) -> EnginePlan:
    """A plan of TensorRT for RTX, which needs no GPU to build."""
    return build_engine(bundle, "tensorrt-rtx")


def fusion_of(plan: EnginePlan) -> FusionReport:
    assert plan.fusion is not None
    return plan.fusion
