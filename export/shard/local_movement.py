"""Parameters of movement nodes, written anew for a part of what they move."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.shard.held import CannotSplitError, Held
from attnport.export.shard.operators import shape_of


def localise_movement(
    whole: ir.Node,
    node: ir.Node,
    source: Held | None,
    parts: Mapping[int, Held],
    graph: ConcreteGraph,
    writer: GraphWriter,
) -> None:
    """Changes a node's parameters so that it makes the parts of its outputs.

    Args:
        whole: The node of the whole graph.
        node: The rank's, whose first input is the rank's part already.
        source: Which part that is; None for the whole.
        parts: The parts of its outputs, by index.
        graph: The whole graph at concrete sizes.
        writer: Where constants and nodes go.

    Raises:
        CannotSplitError: If there are no such parameters.
    """
    change = _CHANGES.get(node.op_type)
    if change is not None:
        change(whole, node, source, parts, graph, writer)


def overridden(writer: GraphWriter, sizes: ir.Value, count: int, at: int, number: int) -> ir.Value:
    """A computed vector of sizes with one of them replaced by a number."""
    mask = np.arange(count) == at
    chosen = writer.constant(mask, f"size_{at}_of_{count}")
    numbers = writer.integers(np.where(mask, number, 0).tolist())
    return writer.op("Where", [chosen, numbers, sizes], "sizes")


def _change_sizes(
    whole: ir.Node,
    node: ir.Node,
    source: Held | None,
    parts: Mapping[int, Held],
    graph: ConcreteGraph,
    writer: GraphWriter,
) -> None:
    """Reshape and Expand: the size along the split axis."""
    sizes, part, asked = node.inputs[1], parts[0], whole.inputs[1]
    assert sizes is not None
    assert asked is not None
    known = graph.data(asked)
    if known is None:
        raise CannotSplitError(f"the sizes of {node.name} ({node.op_type}) are not known")
    at = part.axis - (len(shape_of(whole.outputs[0], graph)) - known.size)
    if at < 0 or (sizes.const_value is not None and known[at] == -1):
        return  # Expand adds the axis from its input, or the size follows from the others
    kept = node.op_type == "Expand" and source is not None
    number = 1 if kept else part.count
    if sizes.const_value is not None:
        wanted = known.copy()
        wanted[at] = number
        node.replace_input_with(1, writer.integers(wanted.tolist()))
        return
    node.replace_input_with(1, overridden(writer, sizes, known.size, at, number))


def _change_split(
    whole: ir.Node,
    node: ir.Node,
    source: Held | None,
    parts: Mapping[int, Held],
    graph: ConcreteGraph,
    writer: GraphWriter,
) -> None:
    """Split: how many of the positions held each output has."""
    shapes = [shape_of(value, graph) for value in whole.outputs]
    axis = node.attributes.get_int("axis", 0) % len(shapes[0])
    if source is None or source.axis != axis:
        return
    bounds = np.cumsum([0, *(shape[axis] for shape in shapes)])
    edges = np.searchsorted(np.array(source.positions), bounds)
    sizes = np.diff(edges).tolist()
    if graph_opset(node) < 13:
        node.attributes["split"] = ir.AttrInt64s("split", sizes)
        return
    node.attributes.pop("num_outputs", None)
    if len(node.inputs) < 2:
        node.resize_inputs(2)
    node.replace_input_with(1, writer.integers(sizes))


def _change_slice(
    whole: ir.Node,
    node: ir.Node,
    source: Held | None,
    parts: Mapping[int, Held],
    graph: ConcreteGraph,
    writer: GraphWriter,
) -> None:
    """Slice: along the split axis from and to which of the positions held."""
    given = [graph.data(value) if value is not None else None for value in whole.inputs[1:]]
    starts, ends, axes, steps = [*given, None, None][:4]
    if source is None or starts is None or ends is None:
        return
    rank = len(shape_of(whole.outputs[0], graph))
    along = [int(axis) % rank for axis in (axes if axes is not None else range(starts.size))]
    if source.axis not in along:
        return
    if any(v is not None and v.const_value is None for v in node.inputs[1:]):
        raise CannotSplitError(f"{node.name} (Slice) is not constant along what is to be split")
    at = along.index(source.axis)
    step = int(steps[at]) if steps is not None else 1
    taken = np.arange(source.size)[int(starts[at]) : int(ends[at]) : step]
    part = parts[0]
    where = source.index_of(np.take(taken, part.positions))
    if not np.array_equal(where, where[0] + np.arange(where.size)):
        raise CannotSplitError(f"{node.name} (Slice) takes positions that are not in a row")
    starts, ends = starts.copy(), ends.copy()
    starts[at], ends[at] = where[0], where[-1] + 1
    node.replace_input_with(1, writer.integers(starts.tolist()))
    node.replace_input_with(2, writer.integers(ends.tolist()))
    if steps is not None and step != 1:
        steps = steps.copy()
        steps[at] = 1
        node.replace_input_with(4, writer.integers(steps.tolist()))


def _change_gather(
    whole: ir.Node,
    node: ir.Node,
    source: Held | None,
    parts: Mapping[int, Held],
    graph: ConcreteGraph,
    writer: GraphWriter,
) -> None:
    """Gather: the indices of the rank's outputs, among the positions held."""
    data, indices = whole.inputs[:2]
    assert data is not None
    assert indices is not None
    axis = node.attributes.get_int("axis", 0) % len(shape_of(data, graph))
    known, part = graph.data(indices), parts[0]
    if source is not None and source.axis != axis:
        return
    if known is None or indices.const_value is None:
        raise CannotSplitError(f"the indices of {node.name} (Gather) are not constant")
    known = np.where(known < 0, known + shape_of(data, graph)[axis], known)
    within = part.axis - axis
    if not 0 <= within < known.ndim:
        return
    wanted = part.moved_to(within).take(known)
    if source is not None:
        wanted = source.index_of(wanted.ravel()).reshape(wanted.shape)
    name = f"{indices.name}.of_{node.name}"
    node.replace_input_with(1, writer.constant(np.ascontiguousarray(wanted), name))


def graph_opset(node: ir.Node) -> int:
    graph = node.graph
    return graph.opset_imports.get("", 18) if isinstance(graph, ir.Graph) else 18


_CHANGES = {
    "Expand": _change_sizes,
    "Gather": _change_gather,
    "Reshape": _change_sizes,
    "Slice": _change_slice,
    "Split": _change_split,
}
