"""Pass: an Einsum of two operands that is one product becomes a MatMul.

Attention is written so ("bhid,bhjd->bhij"), and so are its projections, with a weight that has an
axis of heads ("bid,dhe->bihe", and "bihe,dhe->bid" behind it). As MatMuls they are found like any
other, and engines fuse them likewise.
"""

from __future__ import annotations

import math
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
        writer = GraphWriter(graph, f"/{node.name}" if node.name else "/einsum")
        new = _write_any(writer, node, equation)
        if new is None:
            notes.append(f"{node.name}: {equation} is left as it is: not one product")
            continue
        writer.insert_before(node)
        node.outputs[0].replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        notes.append(f"{equation} became a MatMul")
    changed = sum("became" in note for note in notes)
    return PassRecord(name="einsum_to_matmul", changed=changed, notes=tuple(notes))


def _write_any(writer: GraphWriter, node: ir.Node, equation: str) -> ir.Value | None:
    product = _product(equation)
    if product is not None:
        return _write(writer, node, product)
    projection = _projection(equation)
    if projection is not None:
        return _write_projection(writer, node, projection)
    return None


@dataclass(frozen=True)
class _Projection:
    """Rows times a weight: labels of the operands, and of what is kept of the rows, summed, made."""

    left: str
    right: str
    output: str
    kept: str
    summed: str
    made: str


def _projection(equation: str) -> _Projection | None:
    labels = _labels(equation)
    if labels is None:
        return None
    left, right, output = labels
    kept = "".join(label for label in output if label not in right)
    summed = "".join(label for label in left if label in right)
    made = "".join(label for label in output if label in right)
    covered = set(kept + summed) == set(left) and set(summed + made) == set(right)
    if not covered or not summed or not made or set(summed) & set(output):
        return None
    return _Projection(left, right, output, kept, summed, made)


def _write_projection(writer: GraphWriter, node: ir.Node, labels: _Projection) -> ir.Value | None:
    """(kept,summed) times a constant (summed,made): axes put together before it, apart after it."""
    rows, weight = node.inputs
    if rows is None or weight is None or weight.const_value is None or len(weight.uses()) > 1:
        return None
    order = [labels.right.index(label) for label in labels.summed + labels.made]
    array = weight.const_value.numpy().transpose(order)
    summed, made = array.shape[: len(labels.summed)], array.shape[len(labels.summed) :]
    matrix = array.reshape(math.prod(summed), math.prod(made))
    kept = [0] * len(labels.kept)  # as they are
    rows = _ordered(writer, rows, labels.left, labels.kept + labels.summed)
    if len(summed) > 1:
        rows = writer.op("Reshape", [rows, writer.integers([*kept, len(matrix)])], "rows")
    out = writer.op("MatMul", [rows, writer.weight(matrix, "weight")], "product")
    if len(made) > 1:
        out = writer.op("Reshape", [out, writer.integers([*kept, *made])], "axes")
    return _ordered(writer, out, labels.kept + labels.made, labels.output)


def _labels(equation: str) -> tuple[str, str, str] | None:
    """Those of two operands and of the output, where no operand has one twice."""
    operands, arrow, output = equation.partition("->")
    left, comma, right = operands.partition(",")
    if not arrow or not comma or not (left + right + output).isalpha():
        return None
    if any(len(set(labels)) < len(labels) for labels in (left, right, output)):
        return None
    return left, right, output


def _product(equation: str) -> _Product | None:
    labels = _labels(equation)
    if labels is None:
        return None
    left, right, output = labels
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
