"""Finds every attention of a graph, written as the operator or by hand.

A hand-written attention is found from its Softmax: downwards to the product with V, upwards over
masks and scales to the product of Q and K. What breaks the match is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from attnport.export import capture_operator
from attnport.export.concrete import ConcreteGraph, constant_scalar, static_scalar
from attnport.export.masks import analyse_masks
from attnport.export.probabilities import follow_probabilities
from attnport.export.sites import AttentionSite, MaskTerm, find_layouts

Graphs = Sequence[ConcreteGraph]


def find_attentions(graph: ir.Graph, graphs: Sequence[ConcreteGraph]) -> list[AttentionSite]:
    """Every attention, in the order of the graph.

    Args:
        graph: The graph; it is not changed.
        graphs: The same graph at two or more concrete sizes.
    """
    sites: list[AttentionSite] = []
    for node in graph:
        site = None
        if node.op_type == "Attention" and node.domain in ("", capture_operator.DOMAIN):
            site = _from_operator(node, graphs[0])
        elif node.op_type == "Softmax" and node.domain == "":
            site = _from_softmax(node, graphs)
        if site is not None:
            site.name = f"attn{len(sites)}"
            find_layouts(site, list(graphs))
            analyse_masks(site, graphs)
            sites.append(site)
    return sites


def _from_operator(node: ir.Node, graph: ConcreteGraph) -> AttentionSite | None:
    inputs: list[ir.Value | None] = [*node.inputs, *[None] * 7]
    query, key, value, mask = inputs[:4]
    if query is None or key is None or value is None:
        return None
    site = AttentionSite(
        "", "operator", [node], query, key, value, node.outputs[0],
        causal=bool(node.attributes.get_int("is_causal", 0)),
        heads=node.attributes.get_int("q_num_heads", 0) or None,
        kv_heads=node.attributes.get_int("kv_num_heads", 0) or None,
        softcap=node.attributes.get_float("softcap", 0.0) or None,
    )  # fmt: skip
    if mask is not None:
        is_bool = graph.dtype(mask) == ir.DataType.BOOL
        site.terms.append(MaskTerm("bool" if is_bool else "additive", mask))
    site.scale, site.problem = _operator_scale(node, graph)
    site.problem = site.problem or _operator_problem(node, inputs)
    return site


def _operator_scale(node: ir.Node, graph: ConcreteGraph) -> tuple[float, str]:
    """The scale of an Attention node: its attribute, or 1/√Dh (ONNX operator Attention-23)."""
    if "scale" in node.attributes:
        return node.attributes.get_float("scale"), ""
    query = node.inputs[0]
    shape = graph.shape(query) if query is not None else None
    if shape is None:
        return 1.0, "the head size is not known, so neither is the default scale: set `scale`"
    heads = node.attributes.get_int("q_num_heads", 1) if len(shape) == 3 else 1
    return 1.0 / math.sqrt(shape[-1] / heads), ""


def _operator_problem(node: ir.Node, inputs: Sequence[ir.Value | None]) -> str:
    if any(value is not None for value in inputs[4:7]):
        return "past keys or key lengths are inputs of the operator: pass them outside of it"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "the operator's present or score outputs are used"
    return ""


@dataclass
class _Scores:
    """What stands between Q·Kᵀ and the softmax."""

    product: ir.Node
    nodes: list[ir.Node] = field(default_factory=list)
    terms: list[MaskTerm] = field(default_factory=list)
    scale: float = 1.0
    softmax_dtype: ir.DataType | None = None
    masks_widened: bool = False
    scale_within_cap: float | None = None
    problem: str = ""

    @property
    def softcap(self) -> float | None:
        """C of c·tanh(scores/c): the factor that is applied after the tanh."""
        return None if self.scale_within_cap is None else self.scale / self.scale_within_cap


def _from_softmax(softmax: ir.Node, graphs: Graphs) -> AttentionSite | None:
    scores = _walk_up(softmax.inputs[0], graphs)
    if scores is None:
        return None
    below = follow_probabilities(softmax, graphs[0].dtype(softmax.outputs[0]))
    if below is None:
        return None
    query, key = scores.product.inputs
    value = below.product.inputs[1]
    assert query is not None
    assert key is not None
    assert value is not None
    nodes = [scores.product, *scores.nodes, softmax, *below.nodes, below.product]
    site = AttentionSite(
        "", "pattern", nodes, query, key, value, below.product.outputs[0],
        key_transposed=True, scale=scores.scale, terms=scores.terms,
        softmax_dtype=scores.softmax_dtype, masks_widened=scores.masks_widened,
        softcap=scores.softcap,
        weights_returned=below.returned,
    )  # fmt: skip
    site.problem = scores.problem or _softmax_problem(softmax, graphs[0])
    return site


def _softmax_problem(softmax: ir.Node, graph: ConcreteGraph) -> str:
    shape = graph.shape(softmax.inputs[0]) if softmax.inputs[0] is not None else None
    axis = softmax.attributes.get_int("axis", _default_axis(softmax))
    if shape is None:
        return "the shape of the scores is not known"
    if axis not in (-1, len(shape) - 1):
        return f"the softmax runs over axis {axis}, not over the keys (the last axis)"
    return ""


def _default_axis(softmax: ir.Node) -> int:
    """The last axis; before opset 13 axis 1, with all that follow it."""
    graph = softmax.graph
    opset = graph.opset_imports.get("", 13) if isinstance(graph, ir.Graph) else 13
    return -1 if opset >= 13 else 1


def _walk_up(value: ir.Value | None, graphs: Graphs, depth: int = 0) -> _Scores | None:
    """From the softmax's input to the product of Q and K; None where there is no such product."""
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth > 12:
        return None
    if node.op_type == "MatMul":
        return _Scores(node) if not any(_is_weight(v) for v in node.inputs) else None
    step = _STEPS.get(node.op_type)
    return step(node, graphs, depth) if step is not None else None


def _through(node: ir.Node, value: ir.Value | None, graphs: Graphs, depth: int) -> _Scores | None:
    scores = _walk_up(value, graphs, depth + 1)
    if scores is not None:
        scores.nodes.append(node)
    return scores


def _step_cast(node: ir.Node, graphs: Graphs, depth: int) -> _Scores | None:
    scores = _through(node, node.inputs[0], graphs, depth)
    if scores is not None:
        scores.softmax_dtype = graphs[0].dtype(node.outputs[0])
        scores.masks_widened = not scores.terms
    return scores


def _step_identity(node: ir.Node, graphs: Graphs, depth: int) -> _Scores | None:
    return _through(node, node.inputs[0], graphs, depth)


def _step_scale(node: ir.Node, graphs: Graphs, depth: int) -> _Scores | None:
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


def _step_add(node: ir.Node, graphs: Graphs, depth: int) -> _Scores | None:
    """Scores and a mask, in either order."""
    for value, other in (node.inputs, node.inputs[::-1]):
        scores = _through(node, value, graphs, depth)
        if scores is not None and other is not None:
            scores.terms.append(MaskTerm("additive", other))
            return scores
    return None


def _step_where(node: ir.Node, graphs: Graphs, depth: int) -> _Scores | None:
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


def _step_softcap(node: ir.Node, graphs: Graphs, depth: int) -> _Scores | None:
    scores = _through(node, node.inputs[0], graphs, depth)
    if scores is not None:
        scores.scale_within_cap = scores.scale
    return scores


_STEPS = {
    "Add": _step_add,
    "Cast": _step_cast,
    "Div": _step_scale,
    "Identity": _step_identity,
    "Mul": _step_scale,
    "Tanh": _step_softcap,
    "Where": _step_where,
}


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None
