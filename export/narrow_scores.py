"""Lowering: queries and keys that the source widens only to multiply them are multiplied as they are.

    Cast(q, float32), Cast(k, float32) -> MatMul          GPT-Neo, in half precision
    q, k -> MatMul -> Cast(float32)

TensorRT's attention kernel takes half precision and adds up in float32, so inside of it the two are
the same; a product in float32 it does not fuse at all. Outside of that kernel they are not the same
(a score beyond 65504 is lost), so this is for graphs whose attention ends in the kernel.

Requires: attention in the canonical form.
Ensures: the same numbers wherever products are added up in float32 and not rounded before the Cast.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_scalar
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord

_HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_MOVES = {"Transpose", "Gather", "Reshape", "Identity"}


def narrow_scores(graph: ir.Graph, names: Sequence[str], sizes: ConcreteGraph) -> PassRecord:
    """Narrows the products of these names that can be.

    Args:
        graph: The graph, which is changed.
        names: The nodes that multiply queries and keys.
        sizes: The graph at concrete sizes.
    """
    wanted = set(names)
    nodes = [node for node in graph if node.op_type == "MatMul" and node.name in wanted]
    done = [str(node.name) for node in nodes if _narrow(graph, node, sizes)]
    return PassRecord(name="narrow_scores", changed=len(done), notes=tuple(done))


def _narrow(graph: ir.Graph, node: ir.Node, sizes: ConcreteGraph) -> bool:
    old = node.outputs[0]
    if sizes.dtype(old) != ir.DataType.FLOAT:
        return False
    writer = GraphWriter(graph, f"/{str(node.name).strip('/')}")
    operands = [_narrowed(v, sizes, writer) for v in node.inputs if v is not None]
    query, key = operands
    if query is None or key is None or query[2] != key[2]:
        return False
    product = writer.op("MatMul", [query[0], key[0]], "narrow", dtype=query[2])
    wide = writer.op(
        "Cast", [product], "wide", {"to": ir.DataType.FLOAT.value}, dtype=ir.DataType.FLOAT
    )
    factor = query[1] * key[1]
    if factor != 1.0:
        scale = writer.scalar(factor, ir.DataType.FLOAT)
        wide = writer.op("Mul", [wide, scale], "scaled", dtype=ir.DataType.FLOAT)
    writer.insert_before(node)
    made = product.producer()
    assert made is not None
    old.replace_all_uses_with(wide)
    graph.remove(node, safe=True)
    made.name = node.name  # reports look for it
    return True


def _narrowed(
    value: ir.Value, sizes: ConcreteGraph, writer: GraphWriter
) -> tuple[ir.Value, float, ir.DataType] | None:
    """The value before it was widened, moved likewise; a factor to make up for; its dtype."""
    node = value.producer()
    source = node.inputs[0] if node is not None and not node.domain else None
    if node is None or source is None:
        return None
    if node.op_type == "Cast":
        dtype = sizes.dtype(source)
        return (source, 1.0, dtype) if dtype in _HALVES else None
    if node.op_type == "Mul":
        factor = constant_scalar(node.inputs[1])
        inner = _narrowed(source, sizes, writer) if factor is not None else None
        return (inner[0], inner[1] * (factor or 0.0), inner[2]) if inner is not None else None
    if node.op_type not in _MOVES:
        return None
    inner = _narrowed(source, sizes, writer)
    if inner is None:
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    inputs = [inner[0], *node.inputs[1:]]
    moved = writer.op(node.op_type, inputs, "moved", attributes, dtype=inner[2])
    return moved, inner[1], inner[2]
