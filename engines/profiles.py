"""Optimization profiles: ranges of axes, written as a range of shapes for each input."""

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


def fitting_profile(
    profiles: Sequence[Mapping[str, Axis]], sizes: Mapping[str, int]
) -> int | None:
    """The profile to run at given sizes: of those that take them the narrowest; None if none does.

    The narrowest is the one made for these sizes, such as the profile of one token while decoding.

    >>> wide, one = {"seq": Axis("seq", 1, 64, 512)}, {"seq": Axis("seq", 1, 1, 1)}
    >>> fitting_profile([wide, one], {"seq": 1}), fitting_profile([wide, one], {"seq": 2})
    (1, 0)
    """
    fitting = [
        (_width(axes), number)
        for number, axes in enumerate(profiles)
        if all(name not in axes or size in axes[name] for name, size in sizes.items())
    ]
    return min(fitting)[1] if fitting else None


def _width(axes: Mapping[str, Axis]) -> float:
    width = 1.0
    for axis in axes.values():
        width *= axis.max - axis.min + 1
    return width


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
