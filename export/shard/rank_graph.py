"""The graph of one rank: the same nodes with a part of the weights, and the sums over the ranks.

A sum stands as a node `AllReduce` of the domain `attnport`, which onnx's checker passes over and no
engine takes: the runner cuts the graph there, and the TensorRT copy has a collective in its place.
So no engine can run a rank's graph alone and give a partial sum for the result.
"""

from __future__ import annotations

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.movement import MOVEMENT
from attnport.export.shard.demands import Demands
from attnport.export.shard.held import Held
from attnport.export.shard.local_movement import localise_movement, overridden
from attnport.export.shard.operators import weight_axes
from attnport.export.shard.pairs import RowProduct
from attnport.export.shard.reductions import add_reduction


class RankGraph:
    """Makes the graph of a rank of a copy of the whole one, in place.

    Args:
        whole: The graph that the demands are about, which stays.
        copy: The same, read once more.
        demands: What the rank holds.
        concrete: The whole graph at concrete sizes.
        rank: Which rank.

    Attributes:
        made: The parts of constants that were made, by the name of the whole and the part.
    """

    def __init__(
        self,
        whole: ir.Graph,
        copy: ir.Graph,
        demands: Demands,
        concrete: ConcreteGraph,
        rank: int,
    ) -> None:
        self._pairs = list(zip(whole, copy, strict=True))
        self._graph, self._demands, self._concrete, self._rank = copy, demands, concrete, rank
        self._writer = GraphWriter(copy, "/shard")
        self.made: dict[tuple[str, Held], ir.Value] = {}

    def write(self) -> list[str]:
        """Rewrites the copy.

        Returns:
            The names of the values that are summed over the ranks, in the order of the demands.

        Raises:
            CannotSplitError: If a node cannot be written for a part; names it.
        """
        rows = {row.product: row for row in self._demands.rows}
        totals: dict[str, str] = {}
        for whole, node in self._pairs:
            if whole in rows:
                self._write_rows(whole, node, rows[whole])
            elif whole in self._demands.columns:
                self._write_columns(node, self._demands.columns[whole])
            elif node.op_type == "Shape" and not node.domain:
                self._keep_whole_size(whole, node)
            else:
                self._write_node(whole, node)
        for whole, node in self._pairs:
            for value, twin in zip(whole.outputs, node.outputs, strict=True):
                if value in self._demands.parts:
                    twin.shape = None
        for whole, node in self._pairs:
            if whole in rows:
                row = rows[whole].on(node)
                totals[row.name] = add_reduction(self._graph, row, self._rank)
        self._shape_inputs()
        return [totals[row.name] for row in self._demands.rows]

    def _write_node(self, whole: ir.Node, node: ir.Node) -> None:
        parts = {
            index: part
            for index, value in enumerate(whole.outputs)
            if (part := self._demands.parts.get(value)) is not None
        }
        if not parts:
            return
        asks = self._demands.asks
        for index in range(len(whole.inputs)):
            ask = asks.get((whole, index))
            if ask is not None:
                self._take(whole, node, index, ask)
        if node.op_type in MOVEMENT and not node.domain:
            source = asks.get((whole, 0))
            localise_movement(whole, node, source, parts, self._concrete, self._writer)
            self._writer.insert_before(node)

    def _write_columns(self, node: ir.Node, part: Held) -> None:
        weight = node.inputs[1]
        assert weight is not None
        columns = part.moved_to(weight_axes(node)[1])
        node.replace_input_with(1, self._constant(weight, columns))
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and bias.const_value is not None:
            shape = bias.const_value.shape.numpy()
            if shape and shape[-1] == part.size:
                node.replace_input_with(2, self._constant(bias, part.moved_to(len(shape) - 1)))

    def _write_rows(self, whole: ir.Node, node: ir.Node, row: RowProduct) -> None:
        weight = node.inputs[1]
        assert weight is not None
        self._take(whole, node, 0, row.rows)
        rows = row.rows.moved_to(weight_axes(node)[0])
        node.replace_input_with(1, self._constant(weight, rows))
        if len(node.inputs) > 2 and self._rank > 0:
            node.resize_inputs(2)  # the bias is added by rank 0 alone

    def _take(self, whole: ir.Node, node: ir.Node, index: int, ask: Held) -> None:
        """Gives a node the part of an input that it asks for, picked where the rank holds more."""
        value, original = node.inputs[index], whole.inputs[index]
        assert value is not None
        assert original is not None
        held = self._demands.parts.get(original)
        if value.const_value is not None:
            node.replace_input_with(index, self._constant(value, ask))
        elif held != ask:
            where = ask.positions if held is None else held.index_of(ask.positions).tolist()
            node.replace_input_with(index, self._pick(value, ask.axis, list(where)))
            self._writer.insert_before(node)

    def _pick(self, value: ir.Value, axis: int, where: list[int]) -> ir.Value:
        integers = self._writer.integers
        if where == list(range(where[0], where[0] + len(where))):
            bounds = [integers([at]) for at in (where[0], where[-1] + 1, axis)]
            return self._writer.op("Slice", [value, *bounds], "part")
        return self._writer.op("Gather", [value, integers(where)], "part", {"axis": axis})

    def _constant(self, value: ir.Value, part: Held) -> ir.Value:
        """A part of a constant, shared by all who want the same one."""
        key = (str(value.name), part)
        if key not in self.made:
            assert value.const_value is not None
            count = sum(name == key[0] for name, _ in self.made)
            array = part.take(value.const_value.numpy())
            self.made[key] = self._writer.constant(array, f"{value.name}.part{count or ''}")
        return self.made[key]

    def _keep_whole_size(self, whole: ir.Node, node: ir.Node) -> None:
        """A Shape of a part tells the whole's: what is reckoned from sizes stays as it was."""
        value = whole.inputs[0]
        part = self._demands.parts.get(value) if value is not None else None
        sizes = self._concrete.data(whole.outputs[0])
        if part is None or sizes is None:
            return
        at = part.axis - node.attributes.get_int("start", 0)
        if not 0 <= at < sizes.size:
            return
        users = [(use.node, use.idx) for use in node.outputs[0].uses()]
        restored = overridden(self._writer, node.outputs[0], sizes.size, at, part.size)
        self._writer.insert_before(node)  # the graph is sorted in the end
        for user, index in users:
            user.replace_input_with(index, restored)

    def _shape_inputs(self) -> None:
        parts = {value.name: part for value, part in self._demands.parts.items()}
        for value in self._graph.inputs:
            part = parts.get(value.name)
            if part is not None and value.shape is not None:
                dims = list(value.shape)
                dims[part.axis] = part.count
                value.shape = ir.Shape(dims)
