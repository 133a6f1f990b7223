"""From a softmax to the product with V: what stands between, if it leaves probabilities alone.

Casts, dropout of inference, guards against NaN: they are understood by trying numbers between 0
and 1, and NaN, on the nodes themselves, and not by their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

# Nodes that may stand between; what they do together is tried.
_BETWEEN = {
    "And", "Cast", "Clip", "Dropout", "Equal", "Greater", "Identity", "IsInf", "IsNaN", "Less",
    "Max", "Min", "Mul", "Not", "Or", "Where",
}  # fmt: skip
_MOST_BETWEEN = 24
_TRIED = np.array([0.0, 2.0**-10, 0.25, 0.5, 1.0, np.nan])


@dataclass(frozen=True)
class Probabilities:
    """The way from a softmax to the product with V.

    Attributes:
        nodes: Between the softmax and the product.
        product: The MatMul of the probabilities and V.
        returned: Whether they are used for something else as well.
    """

    nodes: list[ir.Node]
    product: ir.Node
    returned: bool


def follow_probabilities(softmax: ir.Node, dtype: ir.DataType | None) -> Probabilities | None:
    """Follows a softmax to its product with V; None where something else is made of it.

    Args:
        softmax: The node.
        dtype: Of what it gives, where that is known; the file itself need not say it.
    """
    start = softmax.outputs[0]
    reached: dict[ir.Value, None] = {start: None}
    between: dict[ir.Node, None] = {}
    pending = [start]
    products: list[tuple[ir.Node, ir.Value]] = []
    while pending and len(between) <= _MOST_BETWEEN:
        value = pending.pop()
        for node in _users(value):
            if node.graph is not softmax.graph:
                continue  # in a branch or a loop: used elsewhere
            if _multiplies_values(node, value):
                products.append((node, value))
            elif node not in between and _stays_between(node, reached):
                between[node] = None
                for output in node.outputs:
                    reached[output] = None
                    pending.append(output)
    if len(products) != 1:
        return None
    product, weights = products[0]
    nodes = _needed(weights, start, between)
    if nodes is None or not _leaves_probabilities_alone(nodes, start, weights, dtype):
        return None
    inside = {*nodes, product}
    values = [start, *(output for node in nodes for output in node.outputs)]
    returned = any(value.is_graph_output() or set(_users(value)) - inside for value in values)
    return Probabilities(nodes, product, returned)


def _users(value: ir.Value) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for use in value.uses()))


def _multiplies_values(node: ir.Node, value: ir.Value) -> bool:
    other = node.inputs[1] if len(node.inputs) == 2 else None
    plain = node.op_type == "MatMul" and not node.domain and node.inputs[0] is value
    return plain and other is not None and other.const_value is None


def _stays_between(node: ir.Node, reached: Iterable[ir.Value]) -> bool:
    """Whether all the node needs are constants and what was reached; others are tried later."""
    if node.domain or node.op_type not in _BETWEEN:
        return False
    known = set(reached)
    return all(v is None or v in known or v.const_value is not None for v in node.inputs)


def _needed(end: ir.Value, start: ir.Value, between: Iterable[ir.Node]) -> list[ir.Node] | None:
    """The nodes that the end is computed by, in order; None if they need anything else."""
    allowed = set(between)
    found: dict[ir.Node, None] = {}
    pending = [end]
    while pending:
        value = pending.pop()
        node = value.producer()
        if value is start or value.const_value is not None:
            continue
        if node is None or node not in allowed:
            return None
        found.pop(node, None)
        found[node] = None
        pending += [v for v in node.inputs if v is not None]
    return list(reversed(found))


def _leaves_probabilities_alone(
    nodes: list[ir.Node], start: ir.Value, end: ir.Value, dtype: ir.DataType | None
) -> bool:
    if not nodes:
        return True
    tried = _TRIED.astype(dtype.numpy() if dtype is not None else np.float32)
    try:
        result = ReferenceEvaluator(_model(nodes, start, end)).run(None, {str(start.name): tried})
    except Exception:  # an operator that the reference lacks: what it does is not known
        return False
    given, made = tried.astype(np.float64), np.asarray(next(iter(result))).astype(np.float64)
    number = ~np.isnan(given)
    guarded = (made[~number] == 0) | np.isnan(made[~number])
    return np.array_equal(made[number], given[number]) and bool(guarded.all())


def _model(nodes: list[ir.Node], start: ir.Value, end: ir.Value) -> onnx.ModelProto:
    """A model of the nodes alone, from the probabilities on."""
    constants = {
        str(value.name): value.const_value.numpy()
        for node in nodes
        for value in node.inputs
        if value is not None and value.const_value is not None
    }
    unknown = onnx.TypeProto()
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "between",
        [onnx.helper.make_value_info(str(start.name), unknown)],
        [onnx.helper.make_value_info(str(end.name), unknown)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    owner = nodes[0].graph
    opset = owner.opset_imports.get("", 18) if isinstance(owner, ir.Graph) else 18
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
