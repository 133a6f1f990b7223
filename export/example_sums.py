"""Derived axes in example inputs: as long as their terms together, as given and as enlarged."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from attnport.axes import Axis
from attnport.errors import UsageError


def require_sums(
    tensors: Mapping[str, torch.Tensor],
    dims: Mapping[str, Mapping[int, str]],
    axes: Mapping[str, Axis],
) -> None:
    """Refuses an example in which a derived axis is not as long as its terms together.

    Raises:
        UsageError: With the axis, the size and what its terms make.
    """
    found = {
        axis: (name, dim, tensors[name].shape[dim])
        for name, by_dim in dims.items()
        for dim, axis in by_dim.items()
    }
    sizes = {axis: size for axis, (_, _, size) in found.items()}
    for symbol, (name, dim, size) in found.items():
        axis = axes[symbol]
        known = all(not isinstance(term, str) or term in sizes for term in axis.terms)
        if axis.terms and known and axis.size_among(sizes) != size:
            given = ", ".join(f"{t} {sizes[t]}" for t in axis.terms if isinstance(t, str))
            raise UsageError(
                f"axis {axis.rule}, and dimension {dim} of the example {name} has {size} where "
                f"{given} make {axis.size_among(sizes)}: give an example of that size, or declare "
                "the axis otherwise"
            )


def as_long_as_the_sum(
    tensor: torch.Tensor,
    dims: Mapping[int, str],
    axes: Mapping[str, Axis],
    sizes: Mapping[str, int],
) -> torch.Tensor:
    """Repeats what is short of a derived axis, whose terms may have been enlarged."""
    for dim, symbol in dims.items():
        axis = axes[symbol]
        if axis.terms and all(not isinstance(t, str) or t in sizes for t in axis.terms):
            index = torch.arange(axis.size_among(sizes), device=tensor.device) % tensor.shape[dim]
            tensor = tensor.index_select(dim, index)
    return tensor
