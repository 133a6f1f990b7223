"""What the mask terms of an attention mean: causal, hiding nothing, or able to hide a whole row.

Masks that follow from shapes and constants alone (a tril buffer, a comparison of ranges) are read
off at concrete sizes, however they were written. What depends on inputs stays a term.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_array, constant_scalar
from attnport.export.sites import AttentionSite, MaskTerm

# Larger constants are ends of slices ("to the last"), and no distances between positions.
_MAX_DISTANCE = 1 << 20
# A constant with more elements than a shape has is a buffer.
_MAX_RANK = 8
# A mask is looked at up to this many queries and keys.
_MAX_TOKENS = 2048
# Numbers up to this show their effect at the sizes that are asked at first.
_SMALL = 2
# Ancestors of a mask beyond this many nodes, or over a product, are not a mask's own arithmetic.
_MAX_ANCESTORS = 400
_HEAVY = {"MatMul", "Gemm", "Softmax", "Conv", "LayerNormalization"}


def analyse_masks(site: AttentionSite, graphs: Sequence[ConcreteGraph]) -> None:
    """Replaces what is decided by shapes alone by `causal`, and finds whether a row can be dead."""
    dtype = graphs[0].dtype(site.query)
    terms = [part for term in site.terms for part in _conjuncts(_plain(term, site, dtype))]
    meanings = [_meaning_of_constant(term, site, graphs) for term in terms]
    alone = all(meanings)
    by_number = any(
        term.kind == "bool" and math.isfinite(term.fill) and meaning != "nothing"
        for term, meaning in zip(terms, meanings, strict=True)
    )
    by_shape = any(
        not meaning and all(visible_at(term, graph) is not None for graph in graphs)
        for term, meaning in zip(terms, meanings, strict=True)
    )  # a window, say: then it is not causality that hides by shape alone
    kept: list[MaskTerm] = []
    for term, meaning in zip(terms, meanings, strict=True):
        extract = alone or (_hides_for_good(term, graphs) and not by_number and not by_shape)
        if meaning == "causal" and extract:
            site.causal = True
        elif meaning != "nothing":
            kept.append(term)
    site.terms = kept
    site.dead_rows = any(_may_hide_a_row(term, graphs) for term in kept) or any(
        _hide_a_row_together(site, graph) for graph in graphs
    )


def _hides_for_good(term: MaskTerm, graphs: Sequence[ConcreteGraph]) -> bool:
    """Whether what is hidden is so by -inf, and not by a finite number.

    Beside another mask that hides the rest of a row, keys at a finite number come back into view;
    so they do where the number is written over the -inf of another mask.
    """
    if term.kind == "bool":
        return term.fill == -math.inf
    data = [graph.data(term.value) for graph in graphs]
    return all(d is not None and np.isin(d, (0, -math.inf)).all() for d in data)


def _plain(term: MaskTerm, site: AttentionSite, dtype: ir.DataType | None) -> MaskTerm:
    """The term without disguise, where that is exact.

    A finite number that is added stays so beside another mask: where both hide, it adds to what the
    other has left there. It does not where it is -inf in this dtype, and 0 times it NaN.
    """
    plain = _without_additive_disguise(term, dtype)
    by_number = term.kind == "additive" and plain.kind == "bool" and math.isfinite(plain.fill)
    if by_number and len(site.terms) > 1 and not _can_be_minus_infinity(term.value):
        return term
    return plain


def _without_additive_disguise(term: MaskTerm, dtype: ir.DataType | None) -> MaskTerm:
    """Sees through a mask that is added to the scores only to hide them.

    Add(scores, Where(visible, 0, fill)) and Add(scores, (1 - m)·fill) hide as
    Where(visible, scores, fill) does, where fill is so low that no score changes it by adding. In
    half precision only the last form is safe: a fill meant for float32 becomes -inf there, 0 times
    which is NaN, and scores plus the lowest number overflow.
    """
    node = term.value.producer()
    if term.kind != "additive" or node is None or dtype is None:
        return term
    while node.op_type == "Cast":
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None:
            return term
        node = inner
    lowest = float(ml_dtypes.finfo(dtype.numpy()).min)
    if node.op_type == "Where":
        return _from_where(node, lowest) or term
    if node.op_type == "Mul":
        return _from_product(node, lowest) or term
    return term


def _from_where(node: ir.Node, lowest: float) -> MaskTerm | None:
    condition, when_true, when_false = (*node.inputs,)
    assert condition is not None
    for inverted, zero, fill in ((False, when_true, when_false), (True, when_false, when_true)):
        number = constant_scalar(fill)
        if constant_scalar(zero) == 0.0 and number is not None and _absorbs(number, lowest):
            return MaskTerm("bool", condition, inverted, number)
    return None


def _from_product(node: ir.Node, lowest: float) -> MaskTerm | None:
    """(1 - m)·fill, of a mask m of zeros and ones."""
    for hidden, factor in (node.inputs, node.inputs[::-1]):
        number = constant_scalar(factor)
        if number is None or hidden is None or not _absorbs(number, lowest):
            continue
        inputs, _, complete = ancestry([hidden])
        whole = all(v.dtype is not None and not v.dtype.is_floating_point() for v in inputs)
        if complete and inputs and whole:
            # -inf times what is visible would be NaN, so no author meant it: a finite number did.
            return MaskTerm("bool", hidden, True, max(number, lowest))
    return None


def _absorbs(fill: float, lowest: float) -> bool:
    """Whether adding a score to the number gives the number again, in the graph's dtype."""
    return fill <= max(lowest, -1e30)


def _conjuncts(term: MaskTerm) -> list[MaskTerm]:
    """Where(a And b, scores, -inf) hides as Where(a, Where(b, scores, -inf), -inf) does."""
    node = term.value.producer()
    joined = "Or" if term.inverted else "And"
    if term.kind != "bool" or term.fill != -math.inf or node is None or node.op_type != joined:
        return [term]
    parts = [MaskTerm("bool", v, term.inverted) for v in node.inputs if v is not None]
    return [conjunct for part in parts for conjunct in _conjuncts(part)]


def visible_at(term: MaskTerm, graph: ConcreteGraph) -> np.ndarray | None:
    """Where the term leaves the scores as they are, if its data is known and it does only that."""
    data = graph.data(term.value)
    if data is None:
        return None
    if term.kind == "bool":
        return term.visible(data)
    hidden = data <= _hiding_value(data.dtype)
    return ~hidden if np.all(hidden | (data == 0)) else None


def _hiding_value(dtype: np.dtype[np.generic]) -> float:
    """Adding this or less leaves nothing of any probability beside a visible key's."""
    return float(ml_dtypes.finfo(dtype).min) / 2


def _meaning_of_constant(
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
    largest, buffer = _numbers_of(term)
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
        if full is None and far <= _MAX_TOKENS:
            full = _visible_scores(term, site, graph.resized(symbol, far))
    if full is None:
        return False
    expected = causal_rows(full.shape) if meaning == "causal" else np.True_
    return np.array_equal(full, np.broadcast_to(expected, full.shape))


def _numbers_of(term: MaskTerm) -> tuple[int, int]:
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


def scores_shape(site: AttentionSite, graph: ConcreteGraph) -> tuple[int, ...] | None:
    if site.source == "pattern":
        return graph.shape(site.nodes[0].outputs[0])
    query, key = graph.shape(site.query), graph.shape(site.key)
    if query is None or key is None:
        return None
    return (query[0], 1, query[-2], key[-2])


def _may_hide_a_row(term: MaskTerm, graphs: Sequence[ConcreteGraph]) -> bool:
    """Whether some input can leave a query without a single visible key."""
    if term.kind == "bool" and math.isfinite(term.fill):
        return False
    known = [visible_at(term, graph) for graph in graphs]
    if all(visible is not None for visible in known):
        return any(not visible.any(-1).all() for visible in known if visible is not None)
    return term.kind == "bool" or _can_be_minus_infinity(term.value)


def _hide_a_row_together(site: AttentionSite, graph: ConcreteGraph) -> bool:
    """Whether the masks whose data is known leave a query without a visible key."""
    shape = scores_shape(site, graph)
    known = [term for term in site.terms if graph.data(term.value) is not None]
    alive = _alive(site.causal, known, shape, graph) if shape is not None else None
    return alive is not None and not alive.all()


def _can_be_minus_infinity(value: ir.Value) -> bool:
    """Whether an additive mask holds -inf for some input: given so, or made from such a constant."""
    inputs, constants, complete = ancestry([value])
    if not complete:
        return True
    if any(source.dtype is not None and source.dtype.is_floating_point() for source in inputs):
        return True
    for constant in constants:
        array = constant_array(constant)
        if array is not None and array.dtype.kind == "f" and np.isneginf(array).any():
            return True
    return False


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
        elif node.op_type in _HEAVY or len(seen) > _MAX_ANCESTORS:
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


def alive_at(
    site: AttentionSite, shape: tuple[int, ...], graph: ConcreteGraph
) -> np.ndarray | None:
    """(…,N,1): which rows have a visible key; None where a term's data is not known."""
    return _alive(site.causal, site.terms, shape, graph)


def _alive(
    causal: bool, terms: Sequence[MaskTerm], shape: tuple[int, ...], graph: ConcreteGraph
) -> np.ndarray | None:
    visible = causal_rows(shape) if causal else np.ones(shape[-2:], bool)
    visible = np.broadcast_to(visible, shape)
    for term in terms:
        data = graph.data(term.value)
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


def causal_rows(shape: tuple[int, ...]) -> np.ndarray:
    """(N,T) of a scores' shape: True where key j is at or before query i."""
    return np.tri(shape[-2], shape[-1]).astype(bool)
