"""The sum over the ranks behind each product that is split by rows."""

from __future__ import annotations

import onnx_ir as ir

from attnport.export.concrete import constant_scalar
from attnport.export.shard.pairs import RowProduct

DOMAIN, OPERATOR = "attnport", "AllReduce"


def is_reduction(node: ir.Node) -> bool:
    """Whether a node stands for a sum over the ranks."""
    return node.domain == DOMAIN and node.op_type == OPERATOR


def add_reduction(graph: ir.Graph, row: RowProduct, rank: int) -> str:
    """Puts a sum over the ranks behind a product, and its bias on rank 0 alone.

    Args:
        graph: The rank's graph.
        row: The product.
        rank: Which rank.

    Returns:
        The name of the sum, which is the same on every rank.
    """
    partial = _behind_guard(row.product.outputs[0])
    bias = _bias_add(partial)
    complete = partial if bias is None else bias.outputs[0]
    if bias is not None and rank == 0:
        partial = complete
    users = [(use.node, use.idx) for use in complete.uses() if use.node is not bias]
    name = f"/{row.name}/all_reduce"
    total = ir.Value(name=name, type=complete.type, shape=complete.shape)
    node = ir.node(
        OPERATOR, [partial], domain=DOMAIN, name=name, outputs=[total],
        attributes={"reduce_op": "sum"},
    )  # fmt: skip
    graph.insert_after(_later(row.product, complete), node)
    for user, index in users:
        user.replace_input_with(index, total)
    _take_place_among_outputs(graph, complete, total)
    graph.opset_imports[DOMAIN] = 1
    return name


def _behind_guard(value: ir.Value) -> ir.Value:
    """Behind Where(alive, value, 0), which hides rows of every rank alike."""
    node = _only_user(value)
    if node is not None and node.op_type == "Where" and node.inputs[1] is value:
        other = node.inputs[2]
        if constant_scalar(other) == 0.0:
            return node.outputs[0]
    return value


def _bias_add(value: ir.Value) -> ir.Node | None:
    """The node that adds a constant to the value, and does nothing else with it."""
    node = _only_user(value)
    if node is None or node.op_type != "Add":
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    return node if other is not None and other.const_value is not None else None


def _only_user(value: ir.Value) -> ir.Node | None:
    users = value.uses()
    if len(users) != 1 or value.is_graph_output():
        return None
    node = next(iter(users)).node
    return node if not node.domain else None


def _later(product: ir.Node, complete: ir.Value) -> ir.Node:
    return complete.producer() or product


def _take_place_among_outputs(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new
