"""What part of its inputs a node needs, to give a part of its outputs; and the other way round.

Axes are counted from the front. A node whose result along the split axis is made of more than the
same positions of its inputs (a norm over all heads, say) raises CannotSplitError.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import MOVEMENT, move
from attnport.export.shard.held import CannotSplitError, Held, held_of_mask

# Operators whose element depends on the elements of the same place alone, with broadcasting.
ELEMENTWISE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "BitShift",
        "Cast",
        "CastLike",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Swish",
        "Tanh",
        "ThresholdedRelu",
        "Where",
        "Xor",
    ]
)
# Operators that mix along one axis, or from one axis on, and keep the shape.
_ALONG = {"Softmax": -1, "LogSoftmax": -1, "LpNormalization": -1}
_FROM = {"LayerNormalization": -1, "RMSNormalization": -1}
_REDUCTIONS = frozenset(
    [
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    ]
)
Needs = dict[int, Held]


def weight_of(node: ir.Node) -> ir.Value | None:
    """The constant matrix that a MatMul or Gemm multiplies with from the right."""
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return None
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
        return None
    if node.op_type == "Gemm":
        added = node.inputs[2] if len(node.inputs) > 2 else None
        if added is not None and added.const_value is None:
            return None
        if node.attributes.get_int("transA", 0) != 0:
            return None
    return weight


def weight_axes(node: ir.Node) -> tuple[int, int]:
    """The axis of a product's matrix that stands for its rows (what is summed), and its columns."""
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0:
        return 1, 0
    return 0, 1


def needs(node: ir.Node, parts: Mapping[int, Held], graph: ConcreteGraph) -> Needs:
    """The parts of its inputs that a node needs.

    Args:
        node: The node; not a product with a constant matrix whose columns are split.
        parts: For each output that is wanted in part, which.
        graph: The graph at concrete sizes.

    Returns:
        The parts of inputs, by index. Inputs that are not in it are needed whole.

    Raises:
        CannotSplitError: If a part of the outputs is not made of parts of the inputs.
    """
    kind = node.op_type
    if node.domain == "" and kind in MOVEMENT:
        return _of_movement(node, parts, graph)
    if node.domain == "" and kind == "Concat":
        return _of_concat(node, parts[0], graph)
    if set(parts) != {0}:
        raise CannotSplitError(f"{node.name} ({kind}) gives more than one result")
    if node.domain == "" and kind in ELEMENTWISE:
        return _aligned(node, parts[0], graph, range(len(node.inputs)))
    if node.domain == "" and kind == "MatMul":
        return _of_matmul(node, parts[0], graph)
    if node.domain == "" and kind in _REDUCTIONS:
        return _of_reduction(node, parts[0], graph)
    return _of_others(node, parts[0], graph)


def _of_others(node: ir.Node, part: Held, graph: ConcreteGraph) -> Needs:
    rank = len(shape_of(part_output(node), graph))
    kind = node.op_type
    if kind in _ALONG and not node.domain:
        mixed = [node.attributes.get_int("axis", _ALONG[kind]) % rank]
    elif kind in _FROM and not node.domain:
        mixed = list(range(node.attributes.get_int("axis", _FROM[kind]) % rank, rank))
    elif kind == "Trilu" and not node.domain:
        mixed = [rank - 2, rank - 1]
    elif kind == "TensorScatter" and not node.domain:
        mixed = [0, node.attributes.get_int("axis", -2) % rank]
        if part.axis not in mixed:
            return {0: part, 1: part}
    else:
        raise CannotSplitError(f"{node.name} ({kind}) is no operator that is known to keep heads")
    if part.axis in mixed:
        raise CannotSplitError(f"{node.name} ({kind}) mixes what is to be split")
    return {0: part}


def _of_movement(node: ir.Node, parts: Mapping[int, Held], graph: ConcreteGraph) -> Needs:
    source = node.inputs[0]
    assert source is not None
    shape = shape_of(source, graph)
    moved = move(node, np.arange(np.prod(shape, dtype=np.int64)).reshape(shape), graph)
    if moved is None:
        raise CannotSplitError(f"{node.name} ({node.op_type}) depends on more than sizes")
    mask, used = (np.zeros(int(np.prod(shape)), bool) for _ in range(2))
    for index, value in enumerate(node.outputs):
        part = parts.get(index)
        used[moved[index].ravel()] = True
        if part is not None:
            mask[part.take(moved[index]).ravel()] = True
        elif value.uses() or value.is_graph_output():  # a lone key/value head, say
            mask[moved[index].ravel()] = True
    if mask.all() and len(node.outputs) > 1:
        raise CannotSplitError(f"all that {node.name} ({node.op_type}) parts is wanted")
    try:
        found = held_of_mask(mask.reshape(shape), used.reshape(shape))
    except CannotSplitError as err:
        raise CannotSplitError(f"{node.name} ({node.op_type}): {err}") from err
    return {} if found is None else {0: found}


def _of_concat(node: ir.Node, part: Held, graph: ConcreteGraph) -> Needs:
    rank = len(shape_of(node.outputs[0], graph))
    if node.attributes.get_int("axis", 0) % rank == part.axis:
        raise CannotSplitError(f"{node.name} (Concat) joins along what is to be split")
    return _aligned(node, part, graph, range(len(node.inputs)))


def _of_matmul(node: ir.Node, part: Held, graph: ConcreteGraph) -> Needs:
    """(…,N,K) x (…,K,M) -> (…,N,M)."""
    left, right = node.inputs
    rank = len(shape_of(node.outputs[0], graph))
    assert left is not None
    assert right is not None
    if part.axis == rank - 1:
        return {1: part.moved_to(len(shape_of(right, graph)) - 1)}
    if part.axis == rank - 2:
        return {0: part.moved_to(len(shape_of(left, graph)) - 2)}
    return _aligned(node, part, graph, (0, 1))


def _of_reduction(node: ir.Node, part: Held, graph: ConcreteGraph) -> Needs:
    source = node.inputs[0]
    assert source is not None
    rank = len(shape_of(source, graph))
    over = node.inputs[1] if len(node.inputs) > 1 else None
    data = graph.data(over) if over is not None else None
    axes = data.ravel().tolist() if data is not None else node.attributes.get_ints("axes", None)
    gone = {int(axis) % rank for axis in (axes if axes else range(rank))}
    if node.attributes.get_int("keepdims", 1):
        axis = part.axis
    else:
        axis = [i for i in range(rank) if i not in gone][part.axis]
    if axis in gone:
        raise CannotSplitError(f"{node.name} ({node.op_type}) mixes what is to be split")
    return {0: part.moved_to(axis)}


def _aligned(
    node: ir.Node, part: Held, graph: ConcreteGraph, indices: range | tuple[int, ...]
) -> Needs:
    """Inputs whose axes are those of the output, counted from the end, unless they broadcast."""
    rank = len(shape_of(node.outputs[0], graph))
    found = {}
    for index in indices:
        value = node.inputs[index]
        if value is None:
            continue
        shape = shape_of(value, graph)
        axis = part.axis - (rank - len(shape))
        if axis >= 0 and shape[axis] == part.size:
            found[index] = part.moved_to(axis)
        elif axis >= 0 and shape[axis] != 1:
            raise CannotSplitError(f"{node.name} ({node.op_type}) broadcasts what is to be split")
    return found


def gives(node: ir.Node, index: int, part: Held, graph: ConcreteGraph) -> dict[int, Held]:
    """The parts of its outputs that a node makes of a part of one input.

    Raises:
        CannotSplitError: If that is no part of an output, or the node is none of those that keep
            heads apart.
    """
    if node.domain or not (node.op_type in MOVEMENT or node.op_type in ELEMENTWISE):
        raise CannotSplitError(f"{node.name} ({node.op_type}) is no operator that is followed")
    value = node.inputs[index]
    assert value is not None
    shape = shape_of(value, graph)
    if node.op_type in ELEMENTWISE:
        rank = len(shape_of(node.outputs[0], graph))
        return {0: part.moved_to(part.axis + rank - len(shape))}
    moved = move(node, part.mask(shape), graph) if index == 0 else None
    if moved is None:
        raise CannotSplitError(f"{node.name} ({node.op_type}) depends on more than sizes")
    found = {}
    for number, mask in enumerate(moved):
        if mask.any():
            held = held_of_mask(mask)
            if held is not None:
                found[number] = held
    return found


def part_output(node: ir.Node) -> ir.Value:
    return node.outputs[0]


def shape_of(value: ir.Value, graph: ConcreteGraph) -> tuple[int, ...]:
    """The concrete shape.

    Raises:
        CannotSplitError: If it is not known.
    """
    shape = graph.shape(value)
    if shape is None:
        raise CannotSplitError(f"the shape of {value.name} is not known")
    return shape
