"""From a softmax up to the product of queries and keys: masks, scale, softcap and sink on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_scalar, static_scalar
from attnport.export.sites import MaskTerm

Graphs = Sequence[ConcreteGraph]


@dataclass
class Scores:
    """What stands between Q·Kᵀ and the softmax.

    Attributes:
        product: The MatMul of queries and keys.
        nodes: From the product to the softmax, without either.
        terms: What hides or shifts scores, in the order of application.
        scale: The product of the constant factors.
        softmax_dtype: What a Cast makes of the scores; None where there is none.
        masks_widened: Whether masks are applied behind that Cast.
        scale_within_cap: The factor that is applied before a tanh; None without one.
        sink: Whether one more score is put behind those of each row.
        problem: Why it is not understood; empty where it is.
    """

    product: ir.Node
    nodes: list[ir.Node] = field(default_factory=list)
    terms: list[MaskTerm] = field(default_factory=list)
    scale: float = 1.0
    softmax_dtype: ir.DataType | None = None
    masks_widened: bool = False
    scale_within_cap: float | None = None
    sink: bool = False
    problem: str = ""

    @property
    def softcap(self) -> float | None:
        """C of c·tanh(scores/c): the factor that is applied after the tanh."""
        return None if self.scale_within_cap is None else self.scale / self.scale_within_cap


def scores_above(value: ir.Value | None, graphs: Graphs, depth: int = 0) -> Scores | None:
    """From the softmax's input to the product of Q and K; None where there is no such product."""
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth > 12:
        return None
    if node.op_type == "MatMul":
        return Scores(node) if not any(_is_weight(v) for v in node.inputs) else None
    step = _STEPS.get(node.op_type)
    return step(node, graphs, depth) if step is not None else None


def _through(node: ir.Node, value: ir.Value | None, graphs: Graphs, depth: int) -> Scores | None:
    scores = scores_above(value, graphs, depth + 1)
    if scores is not None:
        scores.nodes.append(node)
        if scores.sink and node.op_type not in ("Cast", "Identity", "Sub"):
            scores.problem = f"{node.name} ({node.op_type}) stands behind the sink"
    return scores


def _step_cast(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    scores = _through(node, node.inputs[0], graphs, depth)
    if scores is not None:
        scores.softmax_dtype = graphs[0].dtype(node.outputs[0])
        scores.masks_widened = not scores.terms
    return scores


def _step_identity(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    return _through(node, node.inputs[0], graphs, depth)


def _step_scale(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    """Mul or Div by one number, on either side."""
    for value, other in (node.inputs, node.inputs[::-1]):
        factor = static_scalar(other, graphs)
        if factor is None or (node.op_type == "Div" and other is node.inputs[0]):
            continue
        scores = _through(node, value, graphs, depth)
        if scores is not None:
            scores.scale *= factor if node.op_type == "Mul" else 1.0 / factor
            if scores.terms:
                scores.problem = "the scale is applied after the mask"
        return scores
    return None


def _step_add(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    """Scores and a mask, in either order."""
    for value, other in (node.inputs, node.inputs[::-1]):
        scores = _through(node, value, graphs, depth)
        if scores is not None and other is not None:
            scores.terms.append(MaskTerm("additive", other))
            return scores
    return None


def _step_where(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    """Where(visible, scores, fill) or Where(hidden, fill, scores)."""
    condition, when_true, when_false = node.inputs
    for value, other, inverted in ((when_true, when_false, False), (when_false, when_true, True)):
        fill = constant_scalar(other)
        if fill is None or condition is None:
            continue
        scores = _through(node, value, graphs, depth)
        if scores is not None:
            scores.terms.append(MaskTerm("bool", condition, inverted, fill))
            return scores
    return None


def _step_concat(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    """One more score for each row: the sink."""
    if len(node.inputs) != 2 or not _is_last_axis(
        node, node.attributes.get_int("axis", 0), graphs
    ):
        return None
    scores, column = node.inputs
    shapes = [graph.shape(column) for graph in graphs] if column is not None else [None]
    if any(shape is None or shape[-1] != 1 for shape in shapes):
        return None
    found = _through(node, scores, graphs, depth)
    if found is not None:
        found.sink = True
    return found


def _step_less_largest(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    """Scores less the largest of their row, which a softmax does not feel."""
    scores, other = node.inputs
    largest = other.producer() if other is not None else None
    if largest is None or largest.op_type != "ReduceMax" or largest.inputs[0] is not scores:
        return None
    kept = largest.attributes.get_int("keepdims", 1)
    shapes = [(g.shape(scores), g.shape(largest.outputs[0])) for g in graphs] if scores else []
    if not kept or not all(a and b == (*a[:-1], 1) for a, b in shapes):
        return None
    return _through(node, scores, graphs, depth)


def _is_last_axis(node: ir.Node, axis: int, graphs: Graphs) -> bool:
    shape = graphs[0].shape(node.outputs[0])
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _step_softcap(node: ir.Node, graphs: Graphs, depth: int) -> Scores | None:
    scores = _through(node, node.inputs[0], graphs, depth)
    if scores is not None:
        scores.scale_within_cap = scores.scale
    return scores


_STEPS = {
    "Add": _step_add,
    "Cast": _step_cast,
    "Concat": _step_concat,
    "Div": _step_scale,
    "Identity": _step_identity,
    "Mul": _step_scale,
    "Sub": _step_less_largest,
    "Tanh": _step_softcap,
    "Where": _step_where,
}


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None
