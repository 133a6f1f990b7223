"""Chains of nodes that only move elements, understood by pushing indices through them.

Whether heads are made by view and transpose, by chunk, by a five-dimensional unbind or by Slice and
Squeeze, the chain is decided by which source element ends where. So an array of indices is sent
through it at concrete sizes, and the answer is read off.

Letters as in `records`; C is the width of the source's last axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, static_scalar

MOVEMENT = {
    "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
}  # fmt: skip

SourceLayout = Literal["batch-first", "sequence-first", "flat"]


@dataclass(frozen=True)
class Chain:
    """A way back from a value over movement and constant factors.

    Attributes:
        source: Where it begins: the first value that something else computed.
        end: Where it ends.
        nodes: The nodes, from source to end.
        scale: The product of the constant factors on the way.
    """

    source: ir.Value
    end: ir.Value
    nodes: tuple[ir.Node, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class HeadLayout:
    """How a (B,H,N,Dh) tensor is taken from a source of width C.

    Attributes:
        layout: "batch-first" for a (B,N,C) source, "sequence-first" for (N,B,C), "flat" for
            (B·N,C).
        columns: Array (H,Dh): the source column of each head's element.
    """

    layout: SourceLayout
    columns: np.ndarray

    @property
    def heads(self) -> int:
        return int(self.columns.shape[0])

    @property
    def head_size(self) -> int:
        return int(self.columns.shape[1])

    def same_as(self, other: HeadLayout) -> bool:
        return self.layout == other.layout and np.array_equal(self.columns, other.columns)

    def distinct_heads(self) -> tuple[np.ndarray, np.ndarray]:
        """The columns of the heads that differ, (Hkv,Dh), and for each head which of them it is."""
        kept: list[np.ndarray] = []
        index = np.empty(self.heads, np.int64)
        for head, columns in enumerate(self.columns):
            same = [i for i, other in enumerate(kept) if np.array_equal(columns, other)]
            index[head] = same[0] if same else len(kept)
            if not same:
                kept.append(columns)
        return np.stack(kept), index


def trace_back(value: ir.Value, graphs: Sequence[ConcreteGraph] = ()) -> Chain:
    """Follows movement and constant factors back to what else computed the value.

    Only a value that the chain alone uses could be removed with it; that is the caller's question.

    Args:
        value: Where the chain ends.
        graphs: The graph at concrete sizes, for factors that are computed from a head size.
    """
    nodes: list[ir.Node] = []
    scale = 1.0
    source = value
    while (node := source.producer()) is not None:
        factor = _constant_factor(node, graphs)
        if factor is not None:
            source, scale = factor[0], scale * factor[1]
        elif node.domain == "" and node.op_type in MOVEMENT and node.inputs[0] is not None:
            source = node.inputs[0]
        else:
            break
        nodes.append(node)
    return Chain(source, value, tuple(reversed(nodes)), scale)


def without_factors(
    value: ir.Value, graphs: Sequence[ConcreteGraph] = ()
) -> tuple[ir.Value, float]:
    """What the constant factors at the end of the way to a value multiply, and their product."""
    product = 1.0
    while (node := value.producer()) is not None:
        factor = _constant_factor(node, graphs)
        if factor is None:
            break
        value, product = factor[0], product * factor[1]
    return value, product


def _constant_factor(
    node: ir.Node, graphs: Sequence[ConcreteGraph]
) -> tuple[ir.Value, float] | None:
    """The other operand and the factor, if the node multiplies by one constant number."""
    if node.domain or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    factor = static_scalar(right, graphs)
    if factor is not None and left is not None:
        return left, factor if node.op_type == "Mul" else 1.0 / factor
    factor = static_scalar(left, graphs)
    if node.op_type == "Mul" and factor is not None and right is not None:
        return right, factor
    return None


def push_indices(chain: Chain, graph: ConcreteGraph) -> np.ndarray | None:
    """For every element of the chain's end, the flat index of the source element that it is.

    Returns:
        An integer array of the end's concrete shape; None where a shape or an index is unknown.
    """
    shape = graph.shape(chain.source)
    if shape is None:
        return None
    array = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    current = chain.source
    for node in chain.nodes:
        if node.op_type in MOVEMENT:
            following = node.outputs if node.op_type == "Split" else node.outputs[:1]
            moved = move(node, array, graph)
            if moved is None:
                return None
            position = _position_towards(following, chain, node)
            array, current = moved[position], following[position]
        else:
            current = node.outputs[0]
    return array if current is chain.end else None


def _position_towards(outputs: Sequence[ir.Value], chain: Chain, node: ir.Node) -> int:
    """Which output of the node the chain goes on with."""
    index = chain.nodes.index(node)
    wanted = set(chain.nodes[index + 1].inputs) if index + 1 < len(chain.nodes) else {chain.end}
    return next(i for i, output in enumerate(outputs) if output in wanted)


def move(node: ir.Node, array: np.ndarray, graph: ConcreteGraph) -> list[np.ndarray] | None:
    """What a movement node makes of an array; None where a parameter of it is unknown."""
    parameters: list[np.ndarray | None] = []
    for value in node.inputs[1:]:
        data = graph.data(value) if value is not None else None
        if value is not None and data is None:
            return None
        parameters.append(data)
    return _MOVES[node.op_type](node, array, parameters)


def _reshape(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    target = [int(size) for size in parameters[0]]  # type: ignore[union-attr]
    if not node.attributes.get_int("allowzero", 0):
        target = [array.shape[i] if size == 0 else size for i, size in enumerate(target)]
    return [array.reshape(target)]


def _transpose(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    return [array.transpose(node.attributes.get_ints("perm", range(array.ndim)[::-1]))]


def _split(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    axis = node.attributes.get_int("axis", 0)
    # The sizes are an input since opset 13, an attribute before.
    sizes = parameters[0] if parameters else node.attributes.get_ints("split", None)
    if sizes is not None:
        return np.split(array, np.cumsum(sizes)[:-1], axis)
    count = len(node.outputs)
    part = -(-array.shape[axis] // count)
    return np.split(array, [part * i for i in range(1, count)], axis)


def _slice(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    starts, ends, axes, steps = [*parameters, None, None][:4]
    assert starts is not None
    assert ends is not None
    index: list[slice] = [slice(None)] * array.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = int(axes[i]) if axes is not None else i
        step = int(steps[i]) if steps is not None else 1
        index[axis] = slice(int(start), _slice_end(int(end), step), step)
    return [array[tuple(index)]]


def _slice_end(end: int, step: int) -> int | None:
    """ONNX writes "to the very beginning", going backwards, as a number below minus its size."""
    return None if step < 0 and end < -(1 << 30) else end


def _gather(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    return [np.take(array, parameters[0], node.attributes.get_int("axis", 0))]  # type: ignore[arg-type]


def _squeeze(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    axes = _axes(node, parameters)
    return [array.squeeze(axes if axes is None else tuple(axes))]


def _unsqueeze(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    return [np.expand_dims(array, tuple(_axes(node, parameters) or ()))]


def _axes(node: ir.Node, parameters: list[np.ndarray | None]) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before."""
    if parameters and parameters[0] is not None:
        return [int(axis) for axis in parameters[0]]
    axes = node.attributes.get_ints("axes", None)
    return list(axes) if axes is not None else None


def _expand(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    shape = tuple(int(size) for size in parameters[0])  # type: ignore[union-attr]
    return [np.broadcast_to(array, np.broadcast_shapes(array.shape, shape))]


def _tile(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    return [np.tile(array, parameters[0])]  # type: ignore[arg-type]


def _flatten(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    axis = node.attributes.get_int("axis", 1)
    return [array.reshape(int(np.prod(array.shape[:axis], dtype=np.int64)), -1)]


def _identity(
    node: ir.Node, array: np.ndarray, parameters: list[np.ndarray | None]
) -> list[np.ndarray]:
    return [array]


_MOVES = {
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


def head_layout(indices: np.ndarray, source_shape: Sequence[int]) -> HeadLayout | None:
    """Reads which column of the source each head's elements are, from indices (B,H,N,Dh).

    Args:
        indices: The result of `push_indices`, with the axes in the order B, H, N, Dh.
        source_shape: The concrete shape of the source.

    Returns:
        None where rows of the source end in other rows: that is no layout of heads; and where
        there are none, as behind convolutions over an input too short for them.
    """
    if indices.size == 0:
        return None
    batch, _, tokens, _ = indices.shape
    columns = indices[0, :, 0, :] % source_shape[-1]
    b = np.arange(batch)[:, None, None, None]
    n = np.arange(tokens)[None, None, :, None]
    rows: dict[SourceLayout, tuple[tuple[int, ...], np.ndarray]] = {
        "batch-first": ((batch, tokens), b * tokens + n),
        "sequence-first": ((tokens, batch), n * batch + b),
        "flat": ((batch * tokens,), b * tokens + n),
    }
    for layout, (leading, row) in rows.items():
        if tuple(source_shape[:-1]) != leading:
            continue
        expected = row * source_shape[-1] + columns[None, :, None, :]
        if np.array_equal(indices, expected):
            return HeadLayout(layout, columns)
    return None
