"""Finds every attention of a graph, written as the operator or by hand.

A hand-written attention is found from its Softmax: downwards to the product with V, upwards over
masks and scales to the product of Q and K. What breaks the match is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from attnport.export import capture_operator
from attnport.export.concrete import ConcreteGraph
from attnport.export.masks import analyse_masks
from attnport.export.probabilities import follow_probabilities
from attnport.export.scores import scores_above
from attnport.export.sites import AttentionSite, MaskTerm, find_layouts
from attnport.export.taps import repeated_heads

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
            site.kv_heads = site.kv_heads or _heads_before_repeat(site, graphs)
            analyse_masks(site, graphs)
            sites.append(site)
    return sites


def _heads_before_repeat(site: AttentionSite, graphs: Graphs) -> int | None:
    """Hkv where heads are repeated behind a cache: there no layout tells."""
    found = set()
    for graph in graphs:
        repeated = repeated_heads(site.chains["value"], graph, transposed=False)
        shape = graph.shape(repeated[0]) if repeated is not None else None
        found.add(shape[1] if shape is not None else None)
    return found.pop() if len(found) == 1 else None


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
    site.softmax_dtype = _operator_precision(node, graph.dtype(query))
    site.scale, site.problem = _operator_scale(node, graph)
    site.problem = site.problem or _operator_problem(node, inputs)
    return site


def _operator_precision(node: ir.Node, own: ir.DataType | None) -> ir.DataType | None:
    """The dtype of the softmax, where an attribute says another one than the operands'."""
    said = node.attributes.get_int("softmax_precision", 0)
    return None if not said or ir.DataType(said) == own else ir.DataType(said)


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


def _from_softmax(softmax: ir.Node, graphs: Graphs) -> AttentionSite | None:
    scores = scores_above(softmax.inputs[0], graphs)
    if scores is None:
        return None
    last = _sink_dropped(softmax, graphs) if scores.sink else softmax
    if last is None:
        return None
    below = follow_probabilities(last, graphs[0].dtype(softmax.outputs[0]))
    if below is None:
        return None
    query, key = scores.product.inputs
    value = below.product.inputs[1]
    assert query is not None
    assert key is not None
    assert value is not None
    anchor = [softmax] if last is softmax else [softmax, last]
    nodes = [scores.product, *scores.nodes, *anchor, *below.nodes, below.product]
    site = AttentionSite(
        "", "pattern", nodes, query, key, value, below.product.outputs[0],
        key_transposed=True, scale=scores.scale, terms=scores.terms,
        softmax_dtype=scores.softmax_dtype, masks_widened=scores.masks_widened,
        softcap=scores.softcap,
        weights_returned=below.returned or (last is not softmax and _used_beside(softmax, last)),
        sink=scores.sink,
    )  # fmt: skip
    site.problem = scores.problem or _softmax_problem(softmax, graphs[0])
    return site


def _sink_dropped(softmax: ir.Node, graphs: Graphs) -> ir.Node | None:
    """The Slice behind a softmax that leaves out its last column, which is the sink's."""
    for use in softmax.outputs[0].uses():
        node = use.node
        if node.op_type != "Slice" or node.domain or node.inputs[1] is None:
            continue
        lengths = [(g.shape(softmax.outputs[0]), g.shape(node.outputs[0])) for g in graphs]
        cut = all(a and b and b == (*a[:-1], a[-1] - 1) for a, b in lengths)
        starts = graphs[0].data(node.inputs[1])
        if cut and starts is not None and not starts.any():
            return node
    return None


def _used_beside(node: ir.Node, user: ir.Node) -> bool:
    value = node.outputs[0]
    return value.is_graph_output() or any(use.node is not user for use in value.uses())


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
