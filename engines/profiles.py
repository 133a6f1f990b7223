"""The optimization profile of a bundle: its axes, written as a range of shapes for each input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnport.axes import Axis
from attnport.engines.trt_request import ShapeRange
from attnport.errors import BuildError
from attnport.export.records import TensorSpec


def profile_from_axes(
    inputs: Sequence[TensorSpec], axes: Mapping[str, Axis]
) -> dict[str, ShapeRange]:
    """The range of each input that has a varying dimension; empty for a static graph.

    Raises:
        BuildError: If an axis of an input has no range.
    """
    return {
        spec.name: ShapeRange(
            min=tuple(_size(spec, dim, axes, "min") for dim in spec.shape),
            opt=tuple(_size(spec, dim, axes, "opt") for dim in spec.shape),
            max=tuple(_size(spec, dim, axes, "max") for dim in spec.shape),
        )
        for spec in inputs
        if any(isinstance(dim, str) for dim in spec.shape)
    }


def _size(spec: TensorSpec, dim: int | str, axes: Mapping[str, Axis], which: str) -> int:
    if isinstance(dim, int):
        return dim
    if dim not in axes:
        known = ", ".join(axes) or "none"
        raise BuildError(
            f"input {spec.name!r} has the axis {dim!r}, and the bundle gives it no range (axes with "
            f"a range: {known}): export again with a range for it"
        )
    size: int = getattr(axes[dim], which)
    return size
