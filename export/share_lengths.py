"""Lowering for ONNX Runtime: lengths are read from the inputs, so that masks are made once.

    Shape(query of attention 7)[2]   ->   Shape(input)[1], where both are called "seq"

Every attention makes its causal mask from the lengths of its own queries and keys, which is what
TensorRT bounds a kernel by. ONNX Runtime joins nodes that do the same to the same values, and so
runs one mask for all layers once the lengths are one value.

Requires: shapes have been inferred, and equal names of dimensions mean equal sizes.
Ensures: the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    asking: dict[str, list[ir.Node]] = {}
    for node in graph:
        name = _length_asked(node)
        if name in inputs:
            asking.setdefault(name, []).append(node)
    changed = 0
    for name, nodes in asking.items():
        if len(nodes) == 1 and nodes[0].inputs[0] is inputs[name][0]:
            continue
        changed += _share(graph, nodes, name, *inputs[name])
    return PassRecord(name="share_lengths", changed=changed)


def _share(
    graph: ir.Graph, nodes: Sequence[ir.Node], name: str, value: ir.Value, position: int
) -> int:
    """Makes the length and its scalar once, and says how many nodes they replace."""
    writer = GraphWriter(graph, "/lengths")
    length = writer.sizes(value, position, position + 1, name)
    length.type, length.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
    scalar = writer.squeeze(length, [0], f"{name}_scalar")
    scalar.type, scalar.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    writer.insert_before(graph[0])
    replaced = list(nodes)
    for node in nodes:
        for user, _ in list(node.outputs[0].uses()):
            if user.op_type == "Squeeze" and not user.outputs[0].is_graph_output():
                user.outputs[0].replace_all_uses_with(scalar)
                replaced.append(user)
        node.outputs[0].replace_all_uses_with(length)
    graph.remove([node for node in replaced if node.graph is graph], safe=True)
    return len(nodes)


def _length_asked(node: ir.Node) -> str | None:
    """The name of the one dimension that is asked for."""
    value = node.inputs[0] if node.inputs else None
    if node.op_type != "Shape" or node.domain or value is None or value.shape is None:
        return None
    if node.outputs[0].is_graph_output():
        return None
    dims = list(value.shape)[node.attributes.get_int("start", 0) : _end(node)]
    name = dims[0].value if len(dims) == 1 and isinstance(dims[0], ir.SymbolicDim) else None
    return name if isinstance(name, str) else None


def _end(node: ir.Node) -> int | None:
    return node.attributes["end"].as_int() if "end" in node.attributes else None
