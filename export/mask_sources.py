"""What a mask is made of, however it was moved: the conditions that hide, and which element where.

torch.nn's key_padding_mask becomes Where(mask, -inf, 0), is reshaped to (B,1,1,T), expanded to all
heads, joined with the batch and parted again before it is added to the scores. So an index of every
element is followed back to the condition at concrete sizes, as `movement` does it for heads, and
what is left of all the moving is read off: mostly a few axes of size 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_scalar
from attnport.export.movement import MOVEMENT, move
from attnport.export.sites import MaskTerm

Graphs = Sequence[ConcreteGraph]
_SAME = {"Cast", "Identity"}
_UNIFORM = {*_SAME, "Expand", "Reshape", "Unsqueeze", "Tile"}
_FURTHEST = 24


@dataclass(frozen=True)
class Source:
    """A value that elements of a mask come from.

    Attributes:
        value: Where movement begins.
        indices: For each graph, in the mask's own shape: which element of the value it is.
    """

    value: ir.Value
    indices: tuple[np.ndarray, ...]

    def through(self, value: ir.Value, graphs: Graphs) -> Source | None:
        """The same elements, as those of a value that this one's are broadcast from."""
        found = []
        for graph, index in zip(graphs, self.indices, strict=True):
            wide, narrow = graph.shape(self.value), graph.shape(value)
            if wide is None or narrow is None:
                return None
            numbers = np.arange(int(np.prod(narrow))).reshape(narrow)
            try:
                found.append(np.broadcast_to(numbers, wide).ravel()[index])
            except ValueError:
                return None
        return Source(value, tuple(found))


def source_of(value: ir.Value, graphs: Graphs) -> Source | None:
    """The value itself, as its own source; None where its shape is not known."""
    shapes = [graph.shape(value) for graph in graphs]
    if any(shape is None for shape in shapes):
        return None
    numbers = [np.arange(int(np.prod(s))).reshape(s) for s in shapes if s is not None]
    return Source(value, tuple(numbers))


def unmoved(source: Source, graphs: Graphs) -> Source:
    """The source behind all movement and casts."""
    for _ in range(_FURTHEST):
        before = _one_back(source, graphs)
        if before is None:
            return source
        source = before
    return source


def _one_back(source: Source, graphs: Graphs) -> Source | None:
    node = source.value.producer()
    given = node.inputs[0] if node is not None and not node.domain and node.inputs else None
    if node is None or given is None or given.const_value is not None:
        return None
    if node.op_type in _SAME:
        return replace(source, value=given)
    if node.op_type not in MOVEMENT:
        return None
    position, found = list(node.outputs).index(source.value), []
    for graph, index in zip(graphs, source.indices, strict=True):
        shape = graph.shape(given)
        if shape is None:
            return None
        moved = move(node, np.arange(int(np.prod(shape))).reshape(shape), graph)
        if moved is None:
            return None
        found.append(moved[position].ravel()[index])
    return Source(given, tuple(found))


def axes_of(source: Source, graphs: Graphs) -> tuple[int, ...] | None:
    """The axes of size 1 with which the value broadcasts to the mask; None where it does not.

    The mask may repeat what it is made of along any axis, as heads do.
    """
    rank = source.indices[0].ndim
    shapes = [graph.shape(source.value) for graph in graphs]
    if any(shape is None for shape in shapes):
        return None
    count = rank - len(shapes[0] or ())
    for axes in itertools.combinations(range(rank), count) if count >= 0 else ():
        pairs = zip(shapes, source.indices, strict=True)
        if all(_broadcasts(shape or (), axes, index) for shape, index in pairs):
            return axes
    return None


def _broadcasts(shape: tuple[int, ...], axes: tuple[int, ...], index: np.ndarray) -> bool:
    numbers = np.expand_dims(np.arange(int(np.prod(shape))).reshape(shape), axes)
    try:
        return np.array_equal(np.broadcast_to(numbers, index.shape), index)
    except ValueError:
        return False


def summands(source: Source, graphs: Graphs) -> Iterator[Source | None]:
    """What is added up to a mask, each behind its movement; None for what is not known."""
    source = unmoved(source, graphs)
    node = source.value.producer()
    if node is None or node.domain or node.op_type != "Add":
        yield source
        return
    for value in node.inputs:
        part = source.through(value, graphs) if value is not None else None
        if part is None:
            yield None
        else:
            yield from summands(part, graphs)


def uniform_number(value: ir.Value | None) -> float | None:
    """The number that a value holds everywhere: a constant, or one that is spread out."""
    for _ in range(_FURTHEST):
        number = constant_scalar(value)
        node = value.producer() if value is not None else None
        if number is not None or node is None or node.domain:
            return number
        if node.op_type == "ConstantOfShape":
            filled = node.attributes.get_tensor("value", None)
            return 0.0 if filled is None else float(filled.numpy().reshape(-1)[0])
        if node.op_type not in _UNIFORM:
            return None
        value = node.inputs[0]
    return None


def unmoved_condition(term: MaskTerm, graphs: Graphs) -> MaskTerm:
    """A bool term of what its condition was before it was moved, where that broadcasts likewise."""
    start = source_of(term.value, graphs)
    if start is None or term.kind != "bool":
        return term
    source = unmoved(start, graphs)
    node = term.value.producer()
    only_axes = node is not None and node.op_type == "Unsqueeze" and node.inputs[0] is source.value
    axes = axes_of(source, graphs)
    if source.value is term.value or only_axes or axes is None:
        return term
    return replace(term, value=source.value, axes=axes)
