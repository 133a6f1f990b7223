"""Lowering: products of flattened rows are written on rows of three axes.

    (B,N,…) -> Reshape (B·N,C) -> Gemm -> Reshape (B,N,D)
    (B,N,…) -> Reshape (B,N,C) -> MatMul -> Add -> (B,N,D)

torch writes the output projection of nn.MultiheadAttention in the first way, which hides from
whoever follows rows through a graph that each is computed by itself. The sizes of the two Reshapes
are computed in many ways, so what they do is asked of the graph at concrete sizes.

Requires: nothing.
Ensures: the same numbers, but for where a bias is added in the order of roundings; weights are
referred to, not copied (a transposed one stands behind a Transpose).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


def unflatten_gemm(graph: ir.Graph, graphs: Sequence[ConcreteGraph]) -> PassRecord:
    """Writes every product that stands between two such Reshapes on three axes.

    Args:
        graph: The graph, which is changed.
        graphs: The graph at two or more concrete sizes.
    """
    done = [str(node.name) for node in list(graph) if _unflatten(graph, node, graphs)]
    return PassRecord(name="unflatten_gemm", changed=len(done), notes=tuple(done))


def _unflatten(graph: ir.Graph, node: ir.Node, graphs: Sequence[ConcreteGraph]) -> bool:
    flatten, restore = _reshapes_around(node)
    if flatten is None or restore is None or not _is_plain(node):
        return False
    width = _common_width(flatten, restore, graphs)
    source = flatten.inputs[0]
    if width is None or source is None:
        return False
    writer = GraphWriter(graph, f"/{str(node.name).strip('/')}")
    if any(len(found.shape(source) or ()) != 3 for found in graphs):
        source = writer.op("Reshape", [source, writer.integers([0, 0, width])], "rows")
    output = _product(writer, node, source)
    result = restore.outputs[0]
    output.type, output.shape = result.type, result.shape
    writer.insert_before(node)
    result.replace_all_uses_with(output, replace_graph_outputs=True)
    output.name, result.name = result.name, f"{result.name}_flat"
    graph.remove([restore, node], safe=True)
    if not flatten.outputs[0].uses() and not flatten.outputs[0].is_graph_output():
        graph.remove(flatten, safe=True)
    return True


def _reshapes_around(node: ir.Node) -> tuple[ir.Node | None, ir.Node | None]:
    """The Reshape before a product and the one after it, if nothing else reads its result."""
    if node.op_type not in ("Gemm", "MatMul") or node.domain or node.inputs[0] is None:
        return None, None
    before = node.inputs[0].producer()
    uses = list(node.outputs[0].uses())
    if before is None or len(uses) != 1 or node.outputs[0].is_graph_output():
        return None, None
    after = uses[0].node
    is_pair = before.op_type == after.op_type == "Reshape" and uses[0].idx == 0
    return (before, after) if is_pair else (None, None)


def _is_plain(node: ir.Node) -> bool:
    """Whether it is X·W + b, W and b constant, W perhaps transposed, and nothing scaled."""
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
        return False
    if bias is not None and (bias.const_value is None or len(bias.const_value.shape) > 1):
        return False  # (1,D) would do as well; (B·N,D) would not
    scaled = any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta"))
    return not scaled and not node.attributes.get_int("transA", 0)


def _common_width(
    flatten: ir.Node, restore: ir.Node, graphs: Sequence[ConcreteGraph]
) -> int | None:
    """C, if at all sizes the two leading axes are flattened to one and restored as they were."""
    widths = set()
    for graph in graphs:
        source = graph.shape(flatten.inputs[0]) if flatten.inputs[0] is not None else None
        flat, result = graph.shape(flatten.outputs[0]), graph.shape(restore.outputs[0])
        if source is None or flat is None or result is None:
            return None
        is_rows = len(source) >= 3 and len(flat) == 2 and len(result) == 3
        if not is_rows or source[:2] != result[:2] or flat[0] != source[0] * source[1]:
            return None
        widths.add(flat[1])
    return widths.pop() if len(widths) == 1 else None


def _product(writer: GraphWriter, node: ir.Node, rows: ir.Value) -> ir.Value:
    weight = node.inputs[1]
    if node.attributes.get_int("transB", 0):
        weight = writer.op("Transpose", [weight], "weight", {"perm": [1, 0]})
    product = writer.op("MatMul", [rows, weight], "product")
    made = product.producer()
    assert made is not None
    made.name = node.name  # reports look for it
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return product if bias is None else writer.op("Add", [product, bias], "biased")
