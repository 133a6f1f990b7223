"""Caches of keys and values in a graph: which input is which output of the step before.

Read from the graph, not from names, so that a cache of the user's own module is one, too:

    concat   output = Concat(input, new) along the axis of the tokens
    static   output = TensorScatter(input, new, write_at): written in place, of constant length

Letters as in `records`; P past tokens, M the length of a static cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from attnport.axes import Axis
from attnport.errors import NarrowedRangeError
from attnport.export.records import CacheRecord, TensorSpec

_KINDS: dict[str, Literal["concat", "static"]] = {"Concat": "concat", "TensorScatter": "static"}
# What changes neither the numbers nor where they are.
_SAME = ("Identity",)


@dataclass(frozen=True)
class Cache:
    """A cache, as it stands in a graph.

    Attributes:
        record: What is said of it in `bundle.json`.
        input: Its input of the graph.
        node: What joins it with the new tokens.
    """

    record: CacheRecord
    input: ir.Value
    node: ir.Node

    def write_at(self) -> tuple[ir.Value | None, tuple[int | str, int | str] | None]:
        """Of a static cache, the input that says where to write, and M with the rows written."""
        if self.record.kind != "static" or len(self.node.inputs) < 3:
            return None, None
        where = _origin(self.node.inputs[2])
        length, rows = (_size(v, self.record.axis) for v in (self.input, self.node.inputs[1]))
        return where, None if length is None or rows is None else (length, rows)


def find_caches(graph: ir.Graph) -> list[Cache]:
    """Every cache of a graph, in the order of its inputs."""
    found = {cache.input: cache for cache in _caches(graph)}
    return [found[value] for value in graph.inputs if value in found]


def require_room(specs: Sequence[TensorSpec], axes: Mapping[str, Axis]) -> None:
    """Refuses to write more new tokens at a time than a static cache has.

    Raises:
        NarrowedRangeError: With the range that is left.
    """
    for spec in specs:
        if spec.room is None:
            continue
        length, rows = spec.room
        least = axes[length].min if isinstance(length, str) and length in axes else length
        axis = axes.get(rows) if isinstance(rows, str) else None
        if axis is not None and isinstance(least, int) and axis.max > least:
            raise NarrowedRangeError(
                f"axis {axis.name} goes up to {axis.max}, and so many new tokens do not fit a "
                f"cache of {least}: give it {axis.min} to {least}, or a longer cache"
            )


def _caches(graph: ir.Graph) -> Iterator[Cache]:
    inputs = set(graph.inputs)
    for output in graph.outputs:
        joined = _origin(output)
        node = joined.producer() if joined is not None else None
        if node is None or node.op_type not in _KINDS or node.domain or len(node.inputs) < 2:
            continue
        past = _origin(node.inputs[0])
        if past is None or past not in inputs or past.shape is None:
            continue
        default = {"TensorScatter": -2}.get(node.op_type, 0)
        axis = node.attributes.get_int("axis", default) % len(past.shape)
        record = CacheRecord(
            input=str(past.name), output=str(output.name), kind=_KINDS[node.op_type], axis=axis
        )
        yield Cache(record, past, node)


def _origin(value: ir.Value | None) -> ir.Value | None:
    while value is not None:
        node = value.producer()
        if node is None or node.op_type not in _SAME or node.domain:
            return value
        value = node.inputs[0]
    return None


def _size(value: ir.Value | None, axis: int) -> int | str | None:
    if value is None or value.shape is None or len(value.shape) <= axis:
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else (None if dim.value is None else str(dim.value))
