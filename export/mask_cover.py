"""What is added to hide scores that another mask of the same attention hides already.

GPT-Neo sets the keys after a query to finfo.min, and adds -65504 to the same again: the sum is
finfo.min still, at every size, so the second mask says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.mask_data import scores_shape
from attnport.export.mask_meaning import MAX_TOKENS, numbers_of
from attnport.export.sites import AttentionSite, MaskTerm


def without_covered(
    terms: Sequence[MaskTerm], site: AttentionSite, graphs: Sequence[ConcreteGraph]
) -> list[MaskTerm]:
    """The terms without those that add numbers only where another one hides for good.

    Exact: what another term sets to its fill stays that fill, whichever of the two comes first.
    """
    return [
        term
        for term in terms
        if not any(_is_covered(term, other, site, graphs) for other in terms if other is not term)
    ]


def _is_covered(
    term: MaskTerm, by: MaskTerm, site: AttentionSite, graphs: Sequence[ConcreteGraph]
) -> bool:
    if term.kind != "additive" or by.kind != "bool":
        return False
    if not all(_is_covered_at(term, by, site, graph) for graph in graphs):
        return False
    (largest, buffer), (other, length) = numbers_of(term), numbers_of(by)
    buffer = min(filter(None, (buffer, length)), default=0)
    wanted = (2 * max(largest, other) + 3, buffer)
    return all(
        _is_covered_further(term, by, site, graphs[0], symbol, wanted)
        for symbol in graphs[0].sizes
    )


def _is_covered_further(
    term: MaskTerm,
    by: MaskTerm,
    site: AttentionSite,
    graph: ConcreteGraph,
    symbol: str,
    wanted: tuple[int, int],
) -> bool:
    """Whether it is at a size beyond every number in the masks' arithmetic, or at the buffer's."""
    for size in (max(wanted), wanted[1]):
        far = max(graph.sizes[symbol], min(size, graph.limits.get(symbol, size)))
        if far > MAX_TOKENS:
            continue
        found = _is_covered_at(term, by, site, graph.resized(symbol, far))
        if found is not None:
            return found
    return False


def _is_covered_at(
    term: MaskTerm, by: MaskTerm, site: AttentionSite, graph: ConcreteGraph
) -> bool | None:
    """None where the masks are not known at these sizes."""
    added, condition = term.data(graph), by.data(graph)
    shape, dtype = scores_shape(site, graph), site.softmax_dtype or graph.dtype(site.query)
    if added is None or condition is None or shape is None or dtype is None:
        return None
    try:
        added = np.broadcast_to(added, shape)
        hidden = ~np.broadcast_to(by.visible(condition), shape)
    except ValueError:  # a buffer that is too short for the size
        return None
    return bool((hidden | (added == 0)).all()) and _absorbs(by.fill, added, dtype)


def _absorbs(fill: float, added: np.ndarray, dtype: ir.DataType) -> bool:
    """Whether the fill stays itself, in the dtype, whatever of these numbers is added to it."""
    kind = dtype.numpy()
    start = np.array(fill).astype(kind)
    numbers = added.astype(kind)
    return bool(np.isfinite(numbers).all() and (start + numbers == start).all())
