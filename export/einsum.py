"""Pass: an Einsum of two operands that is a batched product becomes a MatMul.

Attention is written so ("bhid,bhjd->bhij"); as a MatMul it is found like any other, and engines
fuse it likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


@dataclass(frozen=True)
class _Product:
    """The labels of a batched product, and the orders in which the operands have them."""

    left: str
    right: str
    output: str
    batch: str
    rows: str
    columns: str
    summed: str


def einsum_to_matmul(graph: ir.Graph) -> PassRecord:
    """Rewrites every Einsum that one batched product can stand for."""
    notes = []
    for node in list(graph):
        if node.op_type != "Einsum" or node.domain or len(node.inputs) != 2:
            continue
        equation = node.attributes.get_string("equation", "").replace(" ", "")
        product = _product(equation)
        if product is None:
            notes.append(f"{node.name}: {equation} is left as it is: not one batched product")
            continue
        writer = GraphWriter(graph, f"/{node.name}" if node.name else "/einsum")
        new = _write(writer, node, product)
        writer.insert_before(node)
        node.outputs[0].replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        notes.append(f"{equation} became a MatMul")
    changed = sum("became" in note for note in notes)
    return PassRecord(name="einsum_to_matmul", changed=changed, notes=tuple(notes))


def _product(equation: str) -> _Product | None:
    operands, arrow, output = equation.partition("->")
    left, comma, right = operands.partition(",")
    if not arrow or not comma or not (left + right + output).isalpha():
        return None
    if any(len(set(labels)) < len(labels) for labels in (left, right, output)):
        return None
    batch = "".join(label for label in output if label in left and label in right)
    rows = "".join(label for label in left if label in output and label not in right)
    columns = "".join(label for label in right if label in output and label not in left)
    summed = "".join(label for label in left if label in right and label not in output)
    covered = set(batch + rows + columns + summed) == set(left + right)
    if not covered or not len(rows) == len(columns) == len(summed) == 1:
        return None
    return _Product(left, right, output, batch, rows, columns, summed)


def _write(writer: GraphWriter, node: ir.Node, product: _Product) -> ir.Value:
    left, right = node.inputs
    assert left is not None
    assert right is not None
    one = _ordered(writer, left, product.left, product.batch + product.rows + product.summed)
    other = _ordered(
        writer, right, product.right, product.batch + product.summed + product.columns
    )
    made = writer.op("MatMul", [one, other], "product")
    return _ordered(writer, made, product.batch + product.rows + product.columns, product.output)


def _ordered(writer: GraphWriter, value: ir.Value, labels: str, wanted: str) -> ir.Value:
    if labels == wanted:
        return value
    perm = {"perm": [labels.index(label) for label in wanted]}
    return writer.op("Transpose", [value], "ordered", perm)
