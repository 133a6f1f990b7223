"""Lowering: a product whose columns are parted becomes a product for each part.

    X·W_QKV -> Split (…,Eq|Ek|Ev)        becomes        X·W_Q, X·W_K, X·W_V

TensorRT runs products that share their input as one GEMM with an output for each, and parts nothing
afterwards; of a Split of unequal columns whose parts are read by something else than an attention
(a norm of queries and keys) it makes a copy of each part.

Requires: nothing.
Ensures: the same numbers; weights are cut in the graph by a Slice, and not copied into it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from attnport.export.concrete import constant_array
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


@dataclass(frozen=True)
class _Parted:
    """X·W + b, parted.

    Attributes:
        split: The Split of the columns.
        product: The MatMul.
        weight: W, (D,C), constant.
        bias: (C,), constant, or None.
        sizes: The columns of each part.
    """

    split: ir.Node
    product: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    sizes: tuple[int, ...]


def count_separable(graph: ir.Graph) -> int:
    """How many products have their columns parted unequally."""
    return sum(_parted(node) is not None for node in graph)


def separate_columns(graph: ir.Graph, suffix: str) -> PassRecord:
    """Writes a product for each part.

    Args:
        graph: The graph, which is changed.
        suffix: What the name of a further product has behind that of the first, before its number.
    """
    found = [parted for node in list(graph) if (parted := _parted(node)) is not None]
    for parted in found:
        _separate(graph, parted, suffix)
    names = tuple(str(parted.product.name) for parted in found)
    return PassRecord(name="separate_columns", changed=len(found), notes=names)


def _parted(split: ir.Node) -> _Parted | None:
    source = split.inputs[0] if split.inputs else None
    shape = source.shape if source is not None else None
    if split.op_type != "Split" or split.domain or source is None or shape is None:
        return None
    axis = split.attributes.get_int("axis", 0)
    sizes = constant_array(split.inputs[1]) if len(split.inputs) > 1 and split.inputs[1] else None
    if axis not in (-1, len(shape) - 1) or sizes is None or len(set(sizes.tolist())) == 1:
        return None
    node, bias = source.producer(), None
    if node is not None and node.op_type == "Add":
        bias = next((v for v in node.inputs if v is not None and v.const_value is not None), None)
        product = next((v for v in node.inputs if v is not bias), None)
        if bias is None or product is None or not _is_read_once(product):
            return None
        node = product.producer()
    if node is None or node.op_type != "MatMul" or not _is_read_once(source):
        return None
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
        return None
    return _Parted(split, node, weight, bias, tuple(int(n) for n in sizes))


def _is_read_once(value: ir.Value) -> bool:
    return len(list(value.uses())) == 1 and not value.is_graph_output()


def _separate(graph: ir.Graph, parted: _Parted, suffix: str) -> None:
    name = str(parted.product.name)
    writer = GraphWriter(graph, f"/{name.strip('/')}")
    start = 0
    made = []
    for size, output in zip(parted.sizes, parted.split.outputs, strict=True):
        end = start + size
        weight = _cut(writer, parted.weight, start, end, 1, "weight")
        part = writer.op("MatMul", [parted.product.inputs[0], weight], "part", dtype=output.dtype)
        made.append(part)
        if parted.bias is not None:
            bias = _cut(writer, parted.bias, start, end, 0, "bias")
            part = writer.op("Add", [part, bias], "part_biased", dtype=output.dtype)
        part.shape = output.shape
        output.replace_all_uses_with(part, replace_graph_outputs=True)
        start = end
    writer.insert_before(parted.split)
    dead = [parted.split, *_between(parted), parted.product]
    graph.remove(dead, safe=True)
    for number, part in enumerate(made):
        node = part.producer()
        assert node is not None
        node.name = name if number == 0 else f"{name}{suffix}{number}"  # reports look for it


def _between(parted: _Parted) -> list[ir.Node]:
    source = parted.split.inputs[0]
    adder = source.producer() if source is not None else None
    return [adder] if adder is not None and adder is not parted.product else []


def _cut(
    writer: GraphWriter, value: ir.Value, start: int, end: int, axis: int, name: str
) -> ir.Value:
    bounds = [writer.integers([n]) for n in (start, end, axis)]
    return writer.op("Slice", [value, *bounds], name, dtype=value.dtype)
