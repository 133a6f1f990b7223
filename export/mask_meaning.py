"""What a mask means that follows from shapes and constants alone: causality, nothing, or else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnport.export.concrete import ConcreteGraph, constant_array
from attnport.export.mask_data import ancestry, causal_rows, scores_shape, visible_at
from attnport.export.sites import AttentionSite, MaskTerm

# Larger constants are ends of slices ("to the last"), and no distances between positions.
_MAX_DISTANCE = 1 << 20
# A constant with more elements than a shape has is a buffer.
_MAX_RANK = 8
# A mask is looked at up to this many queries and keys.
MAX_TOKENS = 2048
# Numbers up to this show their effect at the sizes that are asked at first.
_SMALL = 2


def meaning_of_constant(
    term: MaskTerm, site: AttentionSite, graphs: Sequence[ConcreteGraph]
) -> str:
    """What the term means at every size asked at: "causal", "nothing", or "" for anything else."""
    if term.kind == "bool" and term.fill > -1e30 and not _is_dtype_minimum(term):
        return ""
    meanings = set()
    for graph in graphs:
        full = _visible_scores(term, site, graph)
        if full is None:
            return ""
        if full.all():
            meanings.add("nothing")
        elif np.array_equal(full, np.broadcast_to(causal_rows(full.shape), full.shape)):
            meanings.add("causal")
        else:
            return ""
    meaning = "causal" if "causal" in meanings else "nothing"
    return meaning if _holds_further(meaning, term, site, graphs) else ""


def _visible_scores(
    term: MaskTerm, site: AttentionSite, graph: ConcreteGraph
) -> np.ndarray | None:
    """(B,H,N,T): what the term leaves visible; None where that is not known."""
    visible, shape = visible_at(term, graph), scores_shape(site, graph)
    if visible is None or shape is None:
        return None
    try:
        return np.broadcast_to(visible, shape)
    except ValueError:  # a buffer that is too short for the size
        return None


def _holds_further(
    meaning: str, term: MaskTerm, site: AttentionSite, graphs: Sequence[ConcreteGraph]
) -> bool:
    """Whether the meaning stays the same at sizes beyond every number in the mask's arithmetic.

    A window of 16 positions is causal at the few tokens that are asked at first.
    """
    largest, buffer = numbers_of(term)
    if largest <= _SMALL and not buffer:
        return True
    return all(
        _means_at(meaning, term, site, graphs[0], symbol, (2 * largest + 3, buffer))
        for symbol in graphs[0].sizes
    )


def _means_at(
    meaning: str,
    term: MaskTerm,
    site: AttentionSite,
    graph: ConcreteGraph,
    symbol: str,
    wanted: tuple[int, int],
) -> bool:
    """Whether it has the meaning where the symbol is the larger size, or the buffer's own."""
    full = None
    for size in (max(wanted), wanted[1]):
        far = max(graph.sizes[symbol], min(size, graph.limits.get(symbol, size)))
        if full is None and far <= MAX_TOKENS:
            full = _visible_scores(term, site, graph.resized(symbol, far))
    if full is None:
        return False
    expected = causal_rows(full.shape) if meaning == "causal" else np.True_
    return np.array_equal(full, np.broadcast_to(expected, full.shape))


def numbers_of(term: MaskTerm) -> tuple[int, int]:
    """The largest whole number that the mask is made with, and the size of its smallest buffer."""
    largest, buffers = 0, [0]
    for constant in ancestry([term.value])[1]:
        array = constant_array(constant)
        if array is None or array.dtype.kind not in "biuf":
            continue
        if array.size > _MAX_RANK:
            buffers.append(max(array.shape))
        elif array.dtype.kind != "b":
            # Negative floats are what hides, and no distances.
            wide = array.astype(np.float64)
            numbers = wide if array.dtype.kind == "f" else np.abs(wide)
            whole = numbers[(numbers < _MAX_DISTANCE) & (numbers == np.round(numbers))]
            largest = max(largest, int(whole.max(initial=0)))
    return largest, min(buffers[1:], default=0)


def _is_dtype_minimum(term: MaskTerm) -> bool:
    return term.fill == float(np.finfo(np.float16).min)
