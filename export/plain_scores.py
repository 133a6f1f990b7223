"""Pass: on the way to a softmax, masks are added, and scaled scores come before what is added.

    Sub(scores, mask)               Add(scores, Neg(mask))
    Mul(Add(scores, bias), c)       Add(Mul(scores, c), Mul(bias, c)), and so for Div

XLNet and Transformer-XL subtract their mask and scale the sum of content and position: the same
numbers as in the form that attention is found in, the first to the bit.

Requires: the graph at two or more concrete sizes, of which numbers are read.
Ensures: the same numbers, up to the rounding of one product; values that something else reads stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, static_scalar
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord
from attnport.export.scores import scores_above

Graphs = Sequence[ConcreteGraph]

_BETWEEN = {"Add", "Cast", "Div", "Identity", "Mul", "Sub", "Where"}
_FURTHEST = 12


def may_have_other_scores(graph: ir.Graph) -> bool:
    """Whether the pass would look at the graph: a Sub, or a factor on a sum, above some softmax."""
    return any(
        node.op_type == "Sub" or (node.op_type in ("Mul", "Div") and _sums(node))
        for node in _above_softmaxes(graph)
    )


def plain_scores(graph: ir.Graph, graphs: Graphs) -> PassRecord:
    """Writes what is subtracted from scores as added, and scales before what is added."""
    notes = []
    for node in [node for node in _above_softmaxes(graph) if node.op_type == "Sub"]:
        scores, mask = node.inputs
        if mask is not None and not _is_largest(mask) and scores_above(scores, graphs) is not None:
            _add_the_negative(graph, node)
            notes.append(f"{node.name}: what was subtracted from the scores is added")
    while (found := _scaled_sum(graph, graphs)) is not None:
        notes.append(f"{found[0].name}: the scale comes before what is added to the scores")
        _scale_first(graph, *found)
    return PassRecord(name="plain_scores", changed=len(notes), notes=tuple(notes))


def _above_softmaxes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes that work element by element right above each softmax, each once."""
    seen: set[ir.Node] = set()
    pending = [(n.inputs[0], 0) for n in graph if n.op_type == "Softmax" and not n.domain]
    while pending:
        value, depth = pending.pop()
        node = value.producer() if value is not None else None
        if node is None or node.domain or node in seen or node.op_type not in _BETWEEN:
            continue
        seen.add(node)
        yield node
        if depth < _FURTHEST:
            pending.extend((one, depth + 1) for one in node.inputs)


def _sums(node: ir.Node) -> list[ir.Node]:
    producers = [value.producer() for value in node.inputs if value is not None]
    return [one for one in producers if one is not None and one.op_type in ("Add", "Sub")]


def _is_largest(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "ReduceMax"


def _scaled_sum(graph: ir.Graph, graphs: Graphs) -> tuple[ir.Node, ir.Node] | None:
    """A factor and the sum right above it, of which one summand is the product of Q and K."""
    for node in _above_softmaxes(graph):
        if node.op_type not in ("Mul", "Div"):
            continue
        for value, other in (node.inputs, node.inputs[::-1]):
            total = value.producer() if value is not None else None
            if total is None or total.op_type != "Add" or not _read_once(total):
                continue
            divided = node.op_type == "Div" and other is node.inputs[0]
            if static_scalar(other, graphs) is None or divided:
                continue
            if scores_above(value, graphs) is not None:
                return node, total
    return None


def _read_once(node: ir.Node) -> bool:
    value = node.outputs[0]
    return not value.is_graph_output() and len(value.uses()) == 1


def _add_the_negative(graph: ir.Graph, node: ir.Node) -> None:
    writer = GraphWriter(graph, f"/{node.name}")
    scores, mask = node.inputs
    negative = writer.op("Neg", [mask], "negative", dtype=mask.dtype if mask else None)
    _replace(graph, node, writer, writer.op("Add", [scores, negative], "masked"))


def _scale_first(graph: ir.Graph, node: ir.Node, total: ir.Node) -> None:
    """Sum, then factor, to factors, then sum."""
    writer = GraphWriter(graph, f"/{node.name}")
    factor = node.inputs[1] if node.inputs[0] is total.outputs[0] else node.inputs[0]
    scaled = [
        writer.op(node.op_type, [one, factor], "scaled", dtype=one.dtype if one else None)
        for one in total.inputs
    ]
    _replace(graph, node, writer, writer.op("Add", scaled, "biased"))
    graph.remove(total, safe=True)  # it would be one more reader of the sum above it


def _replace(graph: ir.Graph, node: ir.Node, writer: GraphWriter, new: ir.Value) -> None:
    old = node.outputs[0]
    new.type, new.shape = old.type, old.shape
    writer.insert_before(node)
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    graph.remove(node, safe=True)
