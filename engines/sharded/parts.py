"""What each rank is fed of the whole inputs, and the whole outputs from what each rank gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnport.errors import InternalError
from attnport.export.shard.records import Part, ShardManifest

Arrays = dict[str, np.ndarray]


def feeds_of_rank(manifest: ShardManifest, rank: int, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """The inputs of a rank: those that are split as its part, the others whole."""
    parts = {part.name: part for part in manifest.split_inputs}
    return {
        name: np.ascontiguousarray(array.take(parts[name].positions[rank], parts[name].axis))
        if name in parts
        else array
        for name, array in feeds.items()
    }


def joined_outputs(
    manifest: ShardManifest, of_ranks: Sequence[Mapping[str, np.ndarray]]
) -> Arrays:
    """The outputs of the whole: parts put together, others those of rank 0."""
    parts = {part.name: part for part in manifest.split_outputs}
    return {
        spec.name: _joined(parts[spec.name], [given[spec.name] for given in of_ranks])
        if spec.name in parts
        else of_ranks[0][spec.name]
        for spec in manifest.outputs
    }


def _joined(part: Part, given: Sequence[np.ndarray]) -> np.ndarray:
    first = given[0]
    shape = list(first.shape)
    size = 1 + max(at for positions in part.positions for at in positions)
    shape[part.axis] = size
    whole = np.empty(shape, first.dtype)
    seen: set[int] = set()
    for positions, array in zip(part.positions, given, strict=True):
        index: list[slice | Sequence[int]] = [slice(None)] * len(shape)
        index[part.axis] = list(positions)
        whole[tuple(index)] = array
        seen |= set(positions)
    if seen != set(range(size)):
        raise InternalError(f"no rank gives all of {part.name}: please report the model")
    return whole
