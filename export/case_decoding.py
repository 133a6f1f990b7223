"""The case that decoding is proved by: whole sequences in one pass, from empty caches.

Each query sees the keys up to its own, nothing is padding, positions begin at 0 and static caches
are written from their first row. Whatever way an engine takes to the same tokens (one at a time, in
chunks, padded, beside others) must give the same numbers.

Letters: S tokens of a sequence, P past tokens, M the length of a static cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnport.axes import Axis, plain_axes, sizes_with_sums
from attnport.export.case_sizes import Sizes, first_sizes
from attnport.export.records import TensorSpec

MASK = "prefix"
NAME = "decoding"
_LONGEST, _BATCH = 24, 3
# Columns that ways of decoding need beside the sequence, for padding.
SPARE = 2


def decoding_sizes(specs: Sequence[TensorSpec], axes: Mapping[str, Axis]) -> Sizes | None:
    """The sizes of the case; None where the model has no caches, or takes no empty ones.

    Args:
        specs: The inputs, with their roles.
        axes: The axes.
    """
    tokens = _token_axis(specs, axes)
    caches = [spec for spec in specs if spec.role == "cache"]
    if tokens is None or not caches:
        return None
    sizes = dict(first_sizes(axes).get("between", {}))
    lengths = {dim for spec in caches for dim in spec.shape[1:] if isinstance(dim, str)}
    if any(axes[dim].min > 0 for dim in lengths) and not any(s.role == "write_at" for s in specs):
        return None  # a past that is never empty
    for dim in lengths:
        sizes[dim] = 0 if axes[dim].min == 0 else axes[dim].max
    sizes[tokens] = min(
        _LONGEST,
        axes[tokens].max,
        *(spec.high for spec in specs if spec.role == "positions" and spec.high is not None),
        *(_room(dim, axes) for dim in lengths or caches[0].shape[2:3]),
    )
    batch = specs[0].shape[0]
    if isinstance(batch, str):
        sizes[batch] = min(max(_BATCH, axes[batch].min), axes[batch].max)
    if sizes[tokens] < max(2, axes[tokens].min):
        return None
    return sizes_with_sums(axes, {name: sizes[name] for name in plain_axes(axes)})


def _room(length: int | str, axes: Mapping[str, Axis]) -> int:
    """How many tokens a cache can take from none on, one at a time, beside the spare columns."""
    if isinstance(length, int):
        return length - SPARE
    axis = axes[length]
    return axis.max + (1 if axis.min == 0 else 0) - SPARE


def _token_axis(specs: Sequence[TensorSpec], axes: Mapping[str, Axis]) -> str | None:
    """The axis of the new tokens: the second of the ids, or of the first activations."""
    for role in ("token_ids", "activation"):
        for spec in specs:
            if spec.role == role and len(spec.shape) > 1:
                dim = spec.shape[1]
                return dim if isinstance(dim, str) and dim in axes else None
    return None
