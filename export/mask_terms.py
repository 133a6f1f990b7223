"""Mask terms without disguise: what is added only to hide, and masks joined by And or Or."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_array, constant_scalar
from attnport.export.mask_data import HEAVY, ancestry
from attnport.export.mask_sources import (
    Source,
    axes_of,
    source_of,
    summands,
    uniform_number,
    unmoved_condition,
)
from attnport.export.sites import AttentionSite, MaskTerm

Graphs = Sequence[ConcreteGraph]
_HIDES = -1e3  # of what stands beside scores: exp of it is 0 in float32
_LOOKS_UP = {"Gather", "GatherElements", "GatherND", "Slice", "Expand", "Reshape"}


def plain_terms(
    term: MaskTerm, site: AttentionSite, dtype: ir.DataType | None, graphs: Graphs
) -> list[MaskTerm]:
    """The term without disguise, where that is exact; a sum of masks as its parts.

    A finite number that is added stays so beside another mask: where both hide, it adds to what the
    other has left there. It does not where it is -inf in this dtype, and 0 times it NaN; nor over
    mere biases, which it absorbs. (ONNX Runtime adds float16 in float32, where a bias is felt beside
    float16's lowest number: a row hidden whole would not keep equal weights, as MPNet's then did.)
    """
    if term.kind == "bool":
        return [unmoved_condition(term, graphs)]
    if dtype is None:
        return [term]
    plain = _without_additive_disguise(term, dtype, graphs)
    by_number = any(one.kind == "bool" and math.isfinite(one.fill) for one in plain)
    before = site.terms[: site.terms.index(term)]
    alone = len(plain) == 1 and len(site.terms) == len(before) + 1
    alone = alone and all(_is_bias(other, dtype, graphs) for other in before)
    if by_number and not alone and not can_be_minus_infinity(term.value):
        return [term]
    return plain


def _is_bias(term: MaskTerm, dtype: ir.DataType, graphs: Graphs) -> bool:
    """Whether a term only shifts scores: no number in it is low enough to hide any."""
    if term.kind == "bool" or _without_additive_disguise(term, dtype, graphs) != [term]:
        return False
    return not _can_reach(term.value, _HIDES)


def _without_additive_disguise(
    term: MaskTerm, dtype: ir.DataType, graphs: Graphs
) -> list[MaskTerm]:
    """Sees through what is added to the scores only to hide them, however it was moved.

    Add(scores, Where(visible, 0, fill)) and Add(scores, (1 - m)·fill) hide as
    Where(visible, scores, fill) does, where fill is so low that no score changes it by adding. In
    half precision only the last form is safe: a fill meant for float32 becomes -inf there, 0 times
    which is NaN, and scores plus the lowest number overflow.
    """
    start = source_of(term.value, graphs)
    lowest = float(ml_dtypes.finfo(dtype.numpy()).min)
    found = []
    for part in summands(start, graphs) if start is not None else ():
        node = part.value.producer() if part is not None else None
        plain = None
        if part is not None and node is not None and node.op_type == "Where":
            plain = _from_where(node, part, lowest, graphs)
        elif part is not None and node is not None and node.op_type == "Mul":
            plain = _from_product(node, part, lowest, graphs)
        if plain is None:
            return [term]
        found.append(plain)
    return found or [term]


def _from_where(node: ir.Node, part: Source, lowest: float, graphs: Graphs) -> MaskTerm | None:
    condition, when_true, when_false = (*node.inputs,)
    for inverted, zero, fill in ((False, when_true, when_false), (True, when_false, when_true)):
        number = uniform_number(fill)
        if uniform_number(zero) == 0.0 and number is not None and _absorbs(number, lowest):
            return _hiding(condition, inverted, number, part, graphs)
    return None


def _from_product(node: ir.Node, part: Source, lowest: float, graphs: Graphs) -> MaskTerm | None:
    """(1 - m)·fill, of a mask m of zeros and ones."""
    for hidden, factor in (node.inputs, node.inputs[::-1]):
        number = constant_scalar(factor)
        if number is None or hidden is None or not _absorbs(number, lowest):
            continue
        inputs, _, complete = ancestry([hidden])
        whole = all(v.dtype is not None and not v.dtype.is_floating_point() for v in inputs)
        if complete and inputs and whole:
            # -inf times what is visible would be NaN, so no author meant it: a finite number did.
            return _hiding(hidden, True, max(number, lowest), part, graphs)
    return None


def _hiding(
    condition: ir.Value | None, inverted: bool, fill: float, part: Source, graphs: Graphs
) -> MaskTerm | None:
    """The term of a condition, as the mask that it was moved to broadcasts."""
    source = part.through(condition, graphs) if condition is not None else None
    if condition is None or source is None:
        return None
    axes = axes_of(source, graphs)
    if axes is None:
        return None
    leading = tuple(range(len(axes)))
    return MaskTerm("bool", condition, inverted, fill, () if axes == leading else axes)


def _absorbs(fill: float, lowest: float) -> bool:
    """Whether adding a score to the number gives the number again, in the graph's dtype."""
    return fill <= max(lowest, -1e30)


def conjuncts(term: MaskTerm) -> list[MaskTerm]:
    """Where(a And b, scores, -inf) hides as Where(a, Where(b, scores, -inf), -inf) does."""
    node = term.value.producer()
    joined = "Or" if term.inverted else "And"
    if term.kind != "bool" or term.fill != -math.inf or node is None or node.op_type != joined:
        return [term]
    if term.axes:
        return [term]
    parts = [MaskTerm("bool", v, term.inverted) for v in node.inputs if v is not None]
    return [conjunct for part in parts for conjunct in conjuncts(part)]


def can_be_minus_infinity(value: ir.Value) -> bool:
    """Whether an additive mask holds -inf for some input: given so, or made from such a constant.

    What products and norms give is finite, whatever they are made of; integers hold no -inf, and
    where a table is looked up only its own numbers count.
    """
    element = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    lowest = float(ml_dtypes.finfo(element).min) if _is_float(value.dtype) else -math.inf
    return _can_reach(value, lowest)


def _can_reach(value: ir.Value, lowest: float) -> bool:
    """Whether an additive mask holds a number below the lowest for some input."""
    pending, seen = [value], {value}
    while pending:
        one = pending.pop()
        node = one.producer()
        if one.const_value is not None:
            if _reaches_below(one, lowest):
                return True
        elif node is None:
            if one.dtype is None or _is_float(one.dtype):
                return True
        elif node.op_type == "Log":
            return True
        elif node.op_type not in HEAVY and (one.dtype is None or _is_float(one.dtype)):
            sources = node.inputs[:1] if node.op_type in _LOOKS_UP else node.inputs
            fresh = [v for v in sources if v is not None and v not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return False


def _is_float(dtype: ir.DataType | None) -> bool:
    return dtype is not None and dtype.is_floating_point()


def _reaches_below(constant: ir.Value, lowest: float) -> bool:
    """Whether a floating constant holds a number below the lowest."""
    array = constant_array(constant)
    if array is None or not _is_float(constant.dtype):
        return False
    return bool((array.astype(np.float64) < lowest).any())
