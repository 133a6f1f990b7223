"""Lowering: the rows of tokens stand as (N,B,C) in between, not as (B,N,C).

TensorRT's attention kernel takes its operands with the sequence before the batch. Where rows are
batch-first it copies them before the projections and after the output of every block; where the
whole stack is sequence-first, one transposition before it and one after it are left. For TensorRT
for RTX 1.7, fp16, D=512, H=8: four bias-free pre-LN blocks take 17 kernels against 19.

Everything between the heads of one attention and those of the next works row by row: products with
constant matrices, norms over the last axis, arithmetic element by element. These form regions;
what crosses a region's border is transposed there, once. Where the source turns rows itself, before
its heads and back after them (nn.MultiheadAttention with batch_first), `to_batch_first` undoes that
beforehand: its transpositions and the source's are pairs, which `cancel_transposes` removes.

Requires: heads made and merged in the canonical way (Reshape and Transpose).
Ensures: the same numbers; only where rows stand is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_array
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord

_Permutations = dict[tuple[int, ...], tuple[int, ...]]
_IN: _Permutations = {(0, 2, 1, 3): (1, 2, 0, 3), (0, 2, 3, 1): (1, 2, 3, 0)}
_OUT: _Permutations = {(0, 2, 1, 3): (2, 0, 1, 3)}
_IN_BACK: _Permutations = {turned: kept for kept, turned in _IN.items()}
_OUT_BACK: _Permutations = {turned: kept for kept, turned in _OUT.items()}
_SWAP = (1, 0, 2)

_ELEMENTWISE = {
    "Abs", "Add", "And", "Cast", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Gelu", "Greater",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mul", "Neg", "Not",
    "Or", "Pow", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Swish", "Tanh",
    "Where",
}  # fmt: skip
_NORMS = {"LayerNormalization", "RMSNormalization"}
_OVER_AXIS = {"Softmax", "Split", "Concat"}
_REDUCTIONS = {"ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"}
_SWAPPED = {"perm": [1, 0, 2]}


def turning_pays(ways: int, transpositions: int) -> bool:
    """Whether rows should stand sequence-first.

    Args:
        ways: Transpositions into and out of heads: a copy each, which TensorRT then saves.
        transpositions: What turning adds at the borders of regions: a copy each, which it makes.
            Measured with TensorRT for RTX 1.7, kernels after and before: one pre-LN block (4
            against 2) 5 and 7, four (16 against 2) 17 and 19.
    """
    return ways > transpositions


def swaps_of(graph: ir.Graph) -> list[ir.Node]:
    """The transpositions between batch-first and sequence-first rows."""
    return [node for node in graph if node.op_type == "Transpose" and _permutation(node) == _SWAP]


def count_swaps(graph: ir.Graph) -> int:
    """How many there are."""
    return len(swaps_of(graph))


@dataclass
class _Region:
    """The values that are to be turned, and the gates to and from heads."""

    values: dict[ir.Value, None] = field(default_factory=dict)
    into_heads: list[ir.Node] = field(default_factory=list)
    out_of_heads: list[ir.Node] = field(default_factory=list)


def to_sequence_first(graph: ir.Graph, sizes: ConcreteGraph) -> PassRecord:
    """Turns every region of batch-first rows in which attentions stand.

    Args:
        graph: The graph, which is changed; sorted afterwards. The shapes of what was turned are
            forgotten, so that they can be inferred again.
        sizes: The graph at concrete sizes.

    Returns:
        As `changed`, how many ways into and out of heads there are.
    """
    return _turn(graph, sizes, "sequence_first", _IN, _OUT)


def to_batch_first(graph: ir.Graph, sizes: ConcreteGraph) -> PassRecord:
    """The inverse: turns every region of sequence-first rows; likewise."""
    return _turn(graph, sizes, "batch_first", _IN_BACK, _OUT_BACK)


def _turn(
    graph: ir.Graph, sizes: ConcreteGraph, name: str, into: _Permutations, out: _Permutations
) -> PassRecord:
    region = _find_region(graph, sizes, into, out)
    ways = len(region.into_heads) + len(region.out_of_heads)
    if not ways:
        return PassRecord(name=name, changed=0)
    entries = [value for value in region.values if _is_entry(value, region, sizes)]
    writer = GraphWriter(graph, f"/{name}")
    _turn_exits(graph, region, entries, writer, sizes)
    _turn_entries(region, entries, writer, sizes)
    for gates, permutations in ((region.into_heads, into), (region.out_of_heads, out)):
        for gate in gates:
            gate.attributes["perm"] = ir.AttrInt64s("perm", permutations[_permutation(gate)])
    writer.append()
    graph.sort()
    _forget_shapes(region, entries)
    note = f"{ways} ways into and out of heads, {len(entries)} transpositions into the rows"
    return PassRecord(name=name, changed=ways, notes=(note,))


def _forget_shapes(region: _Region, entries: list[ir.Value]) -> None:
    turned = [value for value in region.values if value not in entries]
    turned += [gate.outputs[0] for gate in region.out_of_heads]
    turned += [gate.inputs[0] for gate in region.into_heads if gate.inputs[0] is not None]
    for value in turned:
        value.shape = None


def _find_region(
    graph: ir.Graph, sizes: ConcreteGraph, into: _Permutations, out: _Permutations
) -> _Region:
    region = _Region()
    pending: list[ir.Value] = []
    for node in graph:
        if node.op_type != "Transpose" or node.domain or node.inputs[0] is None:
            continue
        permutation, source = _permutation(node), node.inputs[0].producer()
        if permutation in into and _is_reshape(source, 4) and len(_users(node.inputs[0])) == 1:
            assert source is not None
            region.into_heads.append(node)
            pending += [value for value in source.inputs[:1] if value is not None]
        elif permutation in out:
            users = _users(node.outputs[0])
            if len(users) == 1 and _is_reshape(users[0], 3):
                region.out_of_heads.append(node)
                pending.append(users[0].outputs[0])
    while pending:
        value = pending.pop()
        if value in region.values or not _is_rows(value, sizes):
            continue
        region.values[value] = None
        pending += _neighbours(value, sizes)
    return region


def _permutation(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("perm", ()))


def _is_reshape(node: ir.Node | None, rank: int) -> bool:
    """A Reshape that keeps the first two axes: [0,0,H,Dh] or [0,0,E]."""
    if node is None or node.op_type != "Reshape" or node.inputs[1] is None:
        return False
    shape = constant_array(node.inputs[1])
    return shape is not None and shape.size == rank and not shape[:2].any()


def _is_rows(value: ir.Value, sizes: ConcreteGraph) -> bool:
    shape = sizes.shape(value)
    return value.const_value is None and shape is not None and len(shape) == 3


def _neighbours(value: ir.Value, sizes: ConcreteGraph) -> Iterator[ir.Value]:
    """The rows that a node which works row by row computes the value from, or makes of it."""
    producer = value.producer()
    nodes = [producer] if producer is not None else []
    for node in [*nodes, *_users(value)]:
        if _works_by_rows(node, sizes):
            for other in (*node.inputs, *node.outputs):
                if other is not None and _same_rows(other, value, sizes):
                    yield other


def _same_rows(one: ir.Value, other: ir.Value, sizes: ConcreteGraph) -> bool:
    shapes = sizes.shape(one), sizes.shape(other)
    if one.const_value is not None or shapes[0] is None or shapes[1] is None:
        return False
    return len(shapes[0]) == 3 and shapes[0][:2] == shapes[1][:2]


def _works_by_rows(node: ir.Node, sizes: ConcreteGraph) -> bool:
    """Whether the node computes each row of its rank-3 output from the same rows of its inputs."""
    if node.domain or not all(_is_rows(output, sizes) for output in node.outputs if output.name):
        return False
    if node.op_type in _ELEMENTWISE:
        return True
    if node.op_type == "MatMul":
        weight = node.inputs[1]
        return weight is not None and _is_constant_matrix(weight, sizes)
    if node.op_type in _NORMS or node.op_type in _OVER_AXIS:
        default = 0 if node.op_type == "Split" else -1
        return node.attributes.get_int("axis", default) in (-1, 2)
    if node.op_type in _REDUCTIONS:
        axes = sizes.data(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
        given = node.attributes.get_ints("axes", () if axes is None else axes.tolist())
        return list(given) in ([-1], [2]) and bool(node.attributes.get_int("keepdims", 1))
    return False


def _is_constant_matrix(value: ir.Value, sizes: ConcreteGraph) -> bool:
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        value = node.inputs[0]
    return value.const_value is not None and len(sizes.shape(value) or ()) == 2


def _is_entry(value: ir.Value, region: _Region, sizes: ConcreteGraph) -> bool:
    """Whether something outside makes the value, which then is not turned itself."""
    node = value.producer()
    if node is None:
        return True
    if node.op_type == "Reshape" and node.inputs[0] is not None:
        return node.inputs[0].producer() not in region.out_of_heads
    return not _works_by_rows(node, sizes)


def _inside(node: ir.Node, region: _Region, sizes: ConcreteGraph) -> bool:
    """Whether a user of a region's value takes it turned."""
    if _works_by_rows(node, sizes) and any(output in region.values for output in node.outputs):
        return True
    return any(user in region.into_heads for user in _users(node.outputs[0]))


def _turn_exits(
    graph: ir.Graph,
    region: _Region,
    entries: list[ir.Value],
    writer: GraphWriter,
    sizes: ConcreteGraph,
) -> None:
    """Gives users outside a region, and the graph's outputs, the value as it stood."""
    for value in region.values:
        if value in entries:
            continue  # it stands as it did
        outside = [use for use in value.uses() if not _inside(use.node, region, sizes)]
        if not outside and not value.is_graph_output():
            continue
        kept = writer.op("Transpose", [value], "rows", _SWAPPED)
        kept.type, kept.shape = value.type, value.shape
        for use in outside:
            use.node.replace_input_with(use.idx, kept)
        for index, output in enumerate(graph.outputs):
            if output is value:
                kept.name, value.name = value.name, f"{value.name}_sequence_first"
                graph.outputs[index] = kept


def _turn_entries(
    region: _Region, entries: list[ir.Value], writer: GraphWriter, sizes: ConcreteGraph
) -> None:
    """Transposes what comes into a region, rows, and what is broadcast to them."""
    for value in entries:
        uses = [use for use in value.uses() if _inside(use.node, region, sizes)]
        turned = writer.op("Transpose", [value], "rows", _SWAPPED)
        for use in uses:
            use.node.replace_input_with(use.idx, turned)
    operands: dict[ir.Value, ir.Value | None] = {}
    for node in _row_nodes(region, sizes):
        for index, operand in enumerate(node.inputs):
            if operand is None or operand in region.values or node.op_type not in _ELEMENTWISE:
                continue
            if operand not in operands:
                operands[operand] = _turned_operand(operand, writer, sizes)
            turned_operand = operands[operand]
            if turned_operand is not None:
                node.replace_input_with(index, turned_operand)


def _row_nodes(region: _Region, sizes: ConcreteGraph) -> list[ir.Node]:
    producers = dict.fromkeys(value.producer() for value in region.values)
    return [node for node in producers if node is not None and _works_by_rows(node, sizes)]


def _turned_operand(value: ir.Value, writer: GraphWriter, sizes: ConcreteGraph) -> ir.Value | None:
    """An operand that is broadcast over rows, for rows that are turned; None if it is alike."""
    shape = sizes.shape(value)
    if shape is None or len(shape) < 2:
        return None
    if len(shape) == 3:
        if shape[0] == shape[1] == 1:
            return None
        return writer.op("Transpose", [value], "operand", _SWAPPED)
    if shape[0] == 1:
        return None
    return writer.unsqueeze(value, [1], "operand")  # (N,C) -> (N,1,C)


def _users(value: ir.Value | None) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for use in value.uses())) if value is not None else []
