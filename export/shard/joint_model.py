"""One graph for all ranks, in which each takes its part of the weights by its own number.

Triton's TensorRT backend loads one plan on every device of a model, and hands the inputs of the
first to all. So the parts of all ranks are stacked, and a node `Rank` of our own tells which to
take. Every device then holds the weights of all: computing is split, memory is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from attnport.errors import GraphError
from attnport.export.shard.records import ShardManifest
from attnport.export.shard.reductions import DOMAIN, OPERATOR

RANK_OPERATOR = "Rank"
_RANK = "/shard/rank"


class JointModel:
    """Makes the graph.

    Args:
        models: That of each rank, with its weights.
        manifest: How they were split.

    Raises:
        GraphError: If the ranks differ by more than their weights.
    """

    def __init__(self, models: Sequence[onnx.ModelProto], manifest: ShardManifest) -> None:
        if manifest.split_outputs:
            names = ", ".join(part.name for part in manifest.split_outputs)
            raise GraphError(
                f"one plan gives what the first rank gives, and {names} is split over the ranks: "
                "it cannot be served so; a model without caches can"
            )
        self._ranks, self._manifest = len(models), manifest
        self.model = onnx.ModelProto()
        self.model.CopyFrom(models[0])
        self._constants = [
            {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
            for model in models
        ]
        self._added: list[onnx.NodeProto] = []
        self._nodes = [self._by_name(model) for model in models]

    def write(self) -> onnx.ModelProto:
        """The graph, with every constant that the ranks have otherwise picked from a stack."""
        graph = self.model.graph
        biases = self._biases()
        names = {name for name in self._nodes[0] if name not in biases}
        for others in self._nodes[1:]:
            if set(others) != names:
                raise GraphError("the graphs of the ranks differ, so no plan can be all of them")
        for node in graph.node:
            self._pick_inputs(node, biases)
        self._pick_parts_of_inputs()
        nodes = [helper.make_node(RANK_OPERATOR, [], [_RANK], name=_RANK, domain=DOMAIN)]
        nodes += [*self._added, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        self._drop_unused()
        return self.model

    def _by_name(self, model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
        return {node.name: node for node in model.graph.node}

    def _biases(self) -> dict[str, str]:
        """The nodes that add a bias on rank 0 alone, with the constant that they add."""
        makers = {name: node for node in self.model.graph.node for name in node.output}
        found = {}
        for node in self.model.graph.node:
            if node.domain != DOMAIN or node.op_type != OPERATOR:
                continue
            maker = makers[node.input[0]]
            if maker.name not in self._nodes[1]:
                found[maker.name] = next(n for n in maker.input if n in self._constants[0])
        return found

    def _pick_inputs(self, node: onnx.NodeProto, biases: dict[str, str]) -> None:
        for index, name in enumerate(node.input):
            if name not in self._constants[0]:
                continue
            first = self._constants[0][name]
            parts = [first, *(self._of_rank(node, index, rank) for rank in self._others())]
            alone = biases.get(node.name) == name
            if not alone and all(np.array_equal(part, first) for part in parts):
                continue
            if any(part.shape != first.shape for part in parts):
                raise GraphError(
                    f"{node.name} has parts of different sizes on the ranks: one plan for all needs "
                    "equal ones, so give a number of ranks that divides them"
                )
            node.input[index] = self._picked(np.stack(parts), f"{node.name}.{index}")

    def _others(self) -> range:
        return range(1, self._ranks)

    def _of_rank(self, node: onnx.NodeProto, index: int, rank: int) -> np.ndarray:
        """The constant that a rank has in that place; zeros where only rank 0 adds one."""
        other = self._nodes[rank].get(node.name)
        if other is None or index >= len(other.input):
            return np.zeros_like(self._constants[0][node.input[index]])
        return self._constants[rank][other.input[index]]

    def _picked(self, stack: np.ndarray, name: str) -> str:
        """What the rank's own number picks from a stack."""
        constant, picked = f"{name}.of_ranks", f"{name}.picked"
        self.model.graph.initializer.append(numpy_helper.from_array(stack, constant))
        self._added.append(
            helper.make_node("Gather", [constant, _RANK], [picked], name=picked, axis=0)
        )
        return picked

    def _pick_parts_of_inputs(self) -> None:
        """Inputs are given whole to every rank, which takes its part."""
        shapes = {spec.name: spec.shape for spec in self._manifest.inputs}
        for part in self._manifest.split_inputs:
            if len({len(positions) for positions in part.positions}) > 1:
                raise GraphError(f"the ranks take parts of {part.name} of different sizes")
            taken = f"{part.name}.part"
            for node in self.model.graph.node:
                for index, name in enumerate(node.input):
                    if name == part.name:
                        node.input[index] = taken
            where = self._picked(np.array(part.positions, np.int64), f"{part.name}.positions")
            self._added.append(
                helper.make_node("Gather", [part.name, where], [taken], name=taken, axis=part.axis)
            )
            for value in self.model.graph.input:
                if value.name == part.name:
                    size = shapes[part.name][part.axis]
                    assert isinstance(size, int)
                    value.type.tensor_type.shape.dim[part.axis].dim_value = size

    def _drop_unused(self) -> None:
        graph = self.model.graph
        used = {name for node in graph.node for name in node.input}
        kept = [one for one in graph.initializer if one.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)


def with_rank(model: onnx.ModelProto, rank: int) -> onnx.ModelProto:
    """The graph as one of the ranks runs it: its number is a constant."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for node in known.graph.node:
        if node.domain == DOMAIN and node.op_type == RANK_OPERATOR:
            number = numpy_helper.from_array(np.array(rank, np.int64))
            node.CopyFrom(helper.make_node("Constant", [], [_RANK], name=_RANK, value=number))
    return known
