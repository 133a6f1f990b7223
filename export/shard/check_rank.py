"""Whether a rank's graph is the part of the whole that it should be, at concrete sizes.

Every shape must be the whole one with the split axis made smaller; every movement of elements must
bring the rank's elements to where the whole graph brings them; every number that follows from sizes
must have stayed. What breaks one of these is named, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from attnport.errors import GraphError
from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import MOVEMENT, move
from attnport.export.shard.held import Held

_MAX_INDICES = 1 << 24


def check_rank(
    graph: ir.Graph,
    local: ConcreteGraph,
    whole: ConcreteGraph,
    parts: Mapping[str, Held],
    values: Mapping[str, ir.Value],
) -> None:
    """Compares a rank's graph with the whole one.

    Args:
        graph: The rank's.
        local: The same at concrete sizes.
        whole: The whole graph at these sizes.
        parts: What the rank holds, by the value's name.
        values: The values of the whole graph, by name.

    Raises:
        GraphError: If they do not agree; names the node.
    """
    for node in graph:
        for value in node.outputs:
            other = values.get(value.name or "")
            if other is not None:
                _check_shape(node, value, parts.get(str(value.name)), local, whole.shape(other))
                _check_data(node, value, parts, local.data(value), whole.data(other))
        if node.op_type in MOVEMENT and not node.domain:
            _check_movement(node, values, parts, local, whole)


def _check_shape(
    node: ir.Node,
    value: ir.Value,
    part: Held | None,
    local: ConcreteGraph,
    whole: tuple[int, ...] | None,
) -> None:
    found = local.shape(value)
    if whole is None or found is None:
        if part is not None:
            raise _refused(node, "its shape is not known")
        return
    expected = list(whole)
    if part is not None:
        expected[part.axis] = part.count
    if list(found) != expected:
        raise _refused(node, f"it gives {found} where {tuple(expected)} was expected")


def _check_data(
    node: ir.Node,
    value: ir.Value,
    parts: Mapping[str, Held],
    local: np.ndarray | None,
    whole: np.ndarray | None,
) -> None:
    if local is None or whole is None or str(value.name) in parts:
        return
    if not np.array_equal(local, whole, equal_nan=whole.dtype.kind == "f"):
        raise _refused(node, "a number that follows from sizes is another one on a rank")


def _check_movement(
    node: ir.Node,
    values: Mapping[str, ir.Value],
    parts: Mapping[str, Held],
    local: ConcreteGraph,
    whole: ConcreteGraph,
) -> None:
    """Sends the numbers of the whole input's elements through the rank's node."""
    source = node.inputs[0]
    original = values.get(str(source.name)) if source is not None else None
    twin = values.get(str(node.outputs[0].name))
    producer = twin.producer() if twin is not None else None
    if original is None or producer is None or producer.inputs[0] is not original:
        return  # a node that was added: it picks a part, which its shape shows
    shape = whole.shape(original)
    concerned = [str(v.name) for v in (source, *node.outputs) if v is not None]
    if shape is None or np.prod(shape) > _MAX_INDICES or not set(concerned) & set(parts):
        return
    numbers = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    expected = move(producer, numbers, whole)
    found = move(node, _of(parts, concerned[0], numbers), local)
    if expected is None or found is None:
        raise _refused(node, "what it moves where is not known")
    for index, value in enumerate(node.outputs):
        if value.uses() and not np.array_equal(
            found[index], _of(parts, str(value.name), expected[index])
        ):
            raise _refused(node, "it would move elements to other places than in the whole graph")


def _of(parts: Mapping[str, Held], name: str, array: np.ndarray) -> np.ndarray:
    return parts[name].take(array) if name in parts else array


def _refused(node: ir.Node, why: str) -> GraphError:
    return GraphError(
        f"the graph cannot be split at {node.name} ({node.op_type}): {why}; please report the model"
    )
