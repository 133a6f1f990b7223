"""Lowering for ONNX Runtime: lengths are read from the inputs, so that masks are made once.

    Shape(query of attention 7)[2]   ->   Shape(input)[1], where both are called "seq"

Every attention makes its causal mask from the lengths of its own queries and keys, which is what
TensorRT bounds a kernel by. ONNX Runtime joins nodes that do the same to the same values, and so
runs one mask for all layers once the lengths are one value.

Requires: shapes have been inferred, and equal names of dimensions mean equal sizes.
Ensures: the same numbers.
"""

from __future__ import annotations

import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


def share_lengths(graph: ir.Graph) -> PassRecord:
    """Rewrites, in place, every length that has the name of an input's dimension."""
    inputs: dict[str, tuple[ir.Value, int]] = {}
    for value in graph.inputs:
        for position, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                inputs.setdefault(dim.value, (value, position))
    lengths: dict[str, ir.Value] = {}
    first = graph[0] if len(graph) else None
    changed = 0
    for node in list(graph):
        name = _length_asked(node)
        if first is None or name is None or name not in inputs:
            continue
        if name not in lengths:
            lengths[name] = _length_of(graph, first, name, *inputs[name])
        node.outputs[0].replace_all_uses_with(lengths[name], replace_graph_outputs=True)
        graph.remove(node, safe=True)
        changed += 1
    return PassRecord(name="share_lengths", changed=changed)


def _length_asked(node: ir.Node) -> str | None:
    """The name of the one dimension that is asked for, of a value that nodes have made."""
    value = node.inputs[0] if node.inputs else None
    if node.op_type != "Shape" or node.domain or value is None or value.producer() is None:
        return None
    if value.shape is None or node.outputs[0].is_graph_output():
        return None
    dims = list(value.shape)[node.attributes.get_int("start", 0) : _end(node)]
    name = dims[0].value if len(dims) == 1 and isinstance(dims[0], ir.SymbolicDim) else None
    return name if isinstance(name, str) else None


def _end(node: ir.Node) -> int | None:
    return node.attributes["end"].as_int() if "end" in node.attributes else None


def _length_of(
    graph: ir.Graph, first: ir.Node, name: str, value: ir.Value, position: int
) -> ir.Value:
    writer = GraphWriter(graph, "/lengths")
    length = writer.sizes(value, position, position + 1, name)
    length.type, length.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
    writer.insert_before(first)
    return length
