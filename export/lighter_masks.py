"""Lowering for ONNX Runtime: fewer nodes for the masks that TensorRT wants written out.

    Range(0, Cast(n, int32), 1) >= Range(0, Cast(t, int32), 1)   ->   Range(0, n, 1) >= Range(0, t, 1)
    Greater(ReduceMax(Cast(mask, float), axes), 0)               ->   ReduceMax(mask, axes)
    Where(Not(hidden), a, b)                                     ->   Where(hidden, b, a)

Causality is counted in int32 since TensorRT would share int64 with the model's own positions; here
they are to be shared. ReduceMax takes bool since opset 20.

Where a mask is Not(hidden), ReduceMax(Not(hidden)) becomes Not(ReduceMin(hidden)), and the Not goes
on to the Where that reads it.

Requires: for what reduces bools an opset of 18 or more, whose operators mean the same at 20.
Ensures: the same numbers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord

BOOL_MAXIMUM_OPSET = 20
_INT32 = ir.DataType.INT32


def widen_ranges(graph: ir.Graph) -> PassRecord:
    """Counts causal masks in int64, in place."""
    changed = sum(_widen(graph, node) for node in list(graph))
    return PassRecord(name="widen_ranges", changed=changed)


def reduce_bools(graph: ir.Graph) -> PassRecord:
    """Asks of a mask itself whether it shows anything, in place: the graph is then of opset 20."""
    changed = sum(_reduce(graph, node) for node in list(graph))
    return PassRecord(name="reduce_bools", changed=changed)


def lose_negations(graph: ir.Graph) -> PassRecord:
    """Lets every Where read what is hidden, where the mask is its negation, in place."""
    changed = 0
    for node in list(graph):
        if node.op_type == "ReduceMax" and _negated(node.inputs[0]) is not None:
            changed += _reduce_hidden(graph, node)
        elif node.op_type == "Squeeze" and _negated(node.inputs[0]) is not None:
            _pass_negation(graph, node)
        elif node.op_type == "Where" and (hidden := _negated(node.inputs[0])) is not None:
            shown, other = node.inputs[1:]
            for index, value in enumerate((hidden, other, shown)):
                node.replace_input_with(index, value)
            changed += 1
    unread = [n for n in graph if n.op_type == "Not" and not n.outputs[0].uses()]
    graph.remove([n for n in unread if not n.outputs[0].is_graph_output()], safe=True)
    return PassRecord(name="lose_negations", changed=changed)


def _negated(value: ir.Value | None) -> ir.Value | None:
    node = _made_by(value, "Not")
    return node.inputs[0] if node is not None else None


def _reduce_hidden(graph: ir.Graph, node: ir.Node) -> bool:
    """ReduceMax(Not(hidden)) as Not(ReduceMin(hidden)); the Not is small, and goes on."""
    hidden, axes = _negated(node.inputs[0]), node.inputs[1:]
    writer = GraphWriter(graph, f"/{str(node.name).strip('/')}")
    keepdims = {"keepdims": node.attributes.get_int("keepdims", 1)}
    least = writer.op("ReduceMin", [hidden, *axes], "hidden_all", keepdims, ir.DataType.BOOL)
    least.shape = node.outputs[0].shape
    _replace_by_negation(writer, node, least)
    return True


def _pass_negation(graph: ir.Graph, node: ir.Node) -> None:
    """Squeeze(Not(x)) as Not(Squeeze(x))."""
    writer = GraphWriter(graph, f"/{str(node.name).strip('/')}")
    inputs = [_negated(node.inputs[0]), *node.inputs[1:]]
    squeezed = writer.op("Squeeze", inputs, "hidden", dtype=ir.DataType.BOOL)
    squeezed.shape = node.outputs[0].shape
    _replace_by_negation(writer, node, squeezed)


def _replace_by_negation(writer: GraphWriter, node: ir.Node, hidden: ir.Value) -> None:
    result = node.outputs[0]
    negation = writer.op("Not", [hidden], "shown", dtype=ir.DataType.BOOL)
    negation.shape = result.shape
    writer.insert_before(node)
    result.replace_all_uses_with(negation, replace_graph_outputs=True)
    writer.graph.remove(node, safe=True)


def _widen(graph: ir.Graph, compared: ir.Node) -> bool:
    if compared.op_type != "GreaterOrEqual" or compared.domain:
        return False
    column, columns = compared.inputs
    unsqueeze = _made_by(column, "Unsqueeze")
    if unsqueeze is None or not _is_read_once(column):
        return False
    ranges = [_narrow_range(value) for value in (unsqueeze.inputs[0], columns)]
    if None in ranges:
        return False
    writer = GraphWriter(graph, f"/{str(compared.name).strip('/')}")
    zero = writer.constant(np.array(0, np.int64), "int64_scalar_0")
    one = writer.constant(np.array(1, np.int64), "int64_scalar_1")
    for value, name in zip((unsqueeze.inputs[0], columns), ("rows", "columns"), strict=True):
        assert value is not None
        old = value.producer()
        assert old is not None
        cast = _made_by(old.inputs[1], "Cast")
        assert cast is not None
        wide = writer.op("Range", [zero, cast.inputs[0], one], name, dtype=ir.DataType.INT64)
        wide.shape = value.shape
        value.replace_all_uses_with(wide)
    assert column is not None
    column.type = ir.TensorType(ir.DataType.INT64)
    writer.insert_before(unsqueeze)
    return True


def _narrow_range(value: ir.Value | None) -> ir.Node | None:
    """The Range from 0 in steps of 1 to a length that was made int32 for it."""
    node = _made_by(value, "Range")
    if node is None or not _is_read_once(value):
        return None
    cast = _made_by(node.inputs[1], "Cast")
    known = [_number(node.inputs[i]) for i in (0, 2)]
    is_int32 = cast is not None and cast.attributes.get_int("to") == _INT32.value
    length = cast.inputs[0] if cast is not None else None
    is_int64 = length is not None and length.dtype == ir.DataType.INT64
    return node if known == [0, 1] and is_int32 and is_int64 else None


def _reduce(graph: ir.Graph, compared: ir.Node) -> bool:
    if compared.op_type != "Greater" or compared.domain or _number(compared.inputs[1]) != 0:
        return False
    largest = _made_by(compared.inputs[0], "ReduceMax")
    cast = _made_by(largest.inputs[0], "Cast") if largest is not None else None
    mask = cast.inputs[0] if cast is not None else None
    if largest is None or mask is None or mask.dtype != ir.DataType.BOOL:
        return False
    if not _is_read_once(largest.outputs[0]):
        return False
    largest.replace_input_with(0, mask)
    largest.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
    compared.outputs[0].replace_all_uses_with(largest.outputs[0], replace_graph_outputs=True)
    graph.remove(compared, safe=True)
    if cast is not None and not cast.outputs[0].uses():
        graph.remove(cast, safe=True)
    return True


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _is_read_once(value: ir.Value | None) -> bool:
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


def _number(value: ir.Value | None) -> float | None:
    known = value.const_value if value is not None else None
    return float(known.numpy().item()) if known is not None and known.size == 1 else None
