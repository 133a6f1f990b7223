"""The data of masks at concrete sizes: what is visible, which rows are alive, what to feed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.sites import AttentionSite, MaskTerm

# Ancestors of a mask beyond this many nodes, or over a product, are not a mask's own arithmetic.
_MAX_ANCESTORS = 400
HEAVY = {"MatMul", "Gemm", "Softmax", "Conv", "LayerNormalization"}


def visible_at(term: MaskTerm, graph: ConcreteGraph) -> np.ndarray | None:
    """Where the term leaves the scores as they are, if its data is known and it does only that."""
    data = term.data(graph)
    if data is None:
        return None
    if term.kind == "bool":
        return term.visible(data)
    hidden = data <= _hiding_value(data.dtype)
    return ~hidden if np.all(hidden | (data == 0)) else None


def _hiding_value(dtype: np.dtype[np.generic]) -> float:
    """Adding this or less leaves nothing of any probability beside a visible key's."""
    return float(ml_dtypes.finfo(dtype).min) / 2


def scores_shape(site: AttentionSite, graph: ConcreteGraph) -> tuple[int, ...] | None:
    if site.source == "pattern":
        return graph.shape(site.nodes[0].outputs[0])
    query, key = graph.shape(site.query), graph.shape(site.key)
    if query is None or key is None:
        return None
    return (query[0], 1, query[-2], key[-2])


def causal_rows(shape: tuple[int, ...]) -> np.ndarray:
    """(N,T) of a scores' shape: True where key j is at or before query i."""
    return np.tri(shape[-2], shape[-1]).astype(bool)


def alive_at(
    site: AttentionSite, shape: tuple[int, ...], graph: ConcreteGraph
) -> np.ndarray | None:
    """(…,N,1): which rows have a visible key; None where a term's data is not known."""
    return alive_under(site.causal, site.terms, shape, graph)


def alive_under(
    causal: bool, terms: Sequence[MaskTerm], shape: tuple[int, ...], graph: ConcreteGraph
) -> np.ndarray | None:
    visible = causal_rows(shape) if causal else np.ones(shape[-2:], bool)
    visible = np.broadcast_to(visible, shape)
    for term in terms:
        data = term.data(graph)
        if data is None:
            return None
        seen = term.visible(data) if term.kind == "bool" else data != -np.inf
        try:
            seen = np.broadcast_to(seen, shape)
        except ValueError:  # a buffer that is too short for the size
            return None
        # A finite number shows what an earlier term may have hidden.
        by_number = term.kind == "bool" and math.isfinite(term.fill)
        visible = visible | ~seen if by_number else visible & seen
    return np.asarray(visible.any(-1, keepdims=True))


def ancestry(values: Iterable[ir.Value]) -> tuple[set[ir.Value], set[ir.Value], bool]:
    """The graph inputs and constants that values are computed from.

    Returns:
        Inputs, constants, and whether the walk was complete: it stops at products and norms, whose
        results are activations and not masks.
    """
    inputs: set[ir.Value] = set()
    constants: set[ir.Value] = set()
    pending, seen, complete = list(values), set(values), True
    while pending:
        value = pending.pop()
        node = value.producer()
        if value.const_value is not None:
            constants.add(value)
        elif node is None:
            inputs.add(value)
        elif node.op_type in HEAVY or len(seen) > _MAX_ANCESTORS:
            complete = False
        elif node.op_type != "Shape":  # a mask's sizes may come from an activation
            fresh = [v for v in node.inputs if v is not None and v not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return inputs, constants, complete


def mask_feeds(
    sites: Sequence[AttentionSite], conditions: Iterable[ir.Value], graph: ConcreteGraph, seed: int
) -> dict[str, np.ndarray]:
    """Random masks for the inputs that masks are computed from.

    Zeros and ones for what hides, zeros and -inf for what is added, each likely enough to leave
    some rows dead and others alive at the small sizes that are asked at.
    """
    rng = np.random.default_rng(seed)
    added = [t.value for site in sites for t in site.terms if t.kind == "additive"]
    hiding = [t.value for site in sites for t in site.terms if t.kind == "bool"]
    feeds: dict[str, np.ndarray] = {}
    for values, fill in ((added, -np.inf), ([*hiding, *conditions], 1.0)):
        inputs, _, complete = ancestry(values)
        for value in sorted(inputs, key=lambda v: str(v.name)) if complete else ():
            shape = graph.shape(value)
            if shape is None or value.dtype is None or value.name in feeds:
                continue
            chosen = rng.random(shape) < 0.5
            integral = value.dtype == ir.DataType.BOOL or value.dtype.is_integer()
            content = np.where(chosen, 1.0 if integral else fill, 0.0)
            feeds[str(value.name)] = content.astype(value.dtype.numpy())
    return feeds
