"""Edits of an ONNX graph by the names that the passes write, for planting faults in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Change = Callable[[np.ndarray], np.ndarray]
# Plants a fault; False where the graph has nothing of the kind to get wrong.
Fault = Callable[["Edit"], bool]
HEAD_SIZE = 16  # of every subject


class Edit:
    """A copy of a graph with its weights, and what can be done to it.

    Args:
        model: With its weights loaded; it is left as it is.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self._count = 0

    def node(self, ending: str) -> onnx.NodeProto | None:
        """The first node whose name ends so, such as "/softmax"."""
        return next((node for node in self.graph.node if node.name.endswith(ending)), None)

    def of_type(self, op_type: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if node.op_type == op_type]

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if tensor in node.input]

    def weight(self, name: str) -> np.ndarray | None:
        """An initializer's array."""
        for one in self.graph.initializer:
            if one.name == name:
                return np.array(numpy_helper.to_array(one))
        return None

    def set_weight(self, name: str, array: np.ndarray) -> None:
        for one in self.graph.initializer:
            if one.name == name:
                one.CopyFrom(numpy_helper.from_array(array.astype(_dtype_of(one)), name))

    def change_weight(self, name: str, change: Change) -> bool:
        """Replaces an initializer; False if there is none of that name."""
        array = self.weight(name)
        if array is None:
            return False
        self.set_weight(name, change(array))
        return True

    def constant(self, array: np.ndarray) -> str:
        """A new initializer."""
        self._count += 1
        name = f"mutant.constant{self._count}"
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def like(self, value: float) -> str:
        """A scalar of the graph's floating dtype."""
        return self.constant(np.asarray(value).astype(self.float_dtype))

    @property
    def float_dtype(self) -> np.dtype[np.generic]:
        floating = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
        first = next(o for o in self.graph.output if o.type.tensor_type.elem_type in floating)
        return np.dtype(helper.tensor_dtype_to_np_dtype(first.type.tensor_type.elem_type))

    def after(self, node: onnx.NodeProto, op_type: str, *more: str, **attributes: Any) -> str:
        """Puts a node behind the first output of another: every reader reads what it gives."""
        raw = node.output[0]
        inner = f"{raw}.mutated"
        self._rename_in_readers(raw, inner)
        made = helper.make_node(op_type, [raw, *more], [inner], name=f"{inner}.node", **attributes)
        self._insert_after(node, [made])
        return inner

    def insert_after(self, node: onnx.NodeProto, made: list[onnx.NodeProto], old: str) -> None:
        """Puts nodes behind another; readers of `old` read what the last of them gives."""
        self._rename_in_readers(old, made[-1].output[0], except_for=made)
        self._insert_after(node, made)

    def bypass(self, node: onnx.NodeProto, place: int = 0) -> None:
        """Lets readers of a node's output read one of its inputs."""
        self._rename_in_readers(node.output[0], node.input[place])
        for output in self.graph.output:
            if output.name == node.output[0]:
                same = helper.make_node("Identity", [node.input[place]], [output.name])
                self.graph.node.insert(self._index(node), same)
                self.graph.node.remove(node)

    def names(self) -> Iterator[str]:
        yield from (node.name for node in self.graph.node)

    def _insert_after(self, node: onnx.NodeProto, made: list[onnx.NodeProto]) -> None:
        at = self._index(node) + 1
        for offset, one in enumerate(made):
            self.graph.node.insert(at + offset, one)

    def _index(self, node: onnx.NodeProto) -> int:
        return next(i for i, one in enumerate(self.graph.node) if one.output == node.output)

    def _rename_in_readers(
        self, old: str, new: str, except_for: list[onnx.NodeProto] | None = None
    ) -> None:
        for node in self.graph.node:
            if except_for and node in except_for:
                continue
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new


def attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    """Sets an attribute in place of the one that is there."""
    for one in list(node.attribute):
        if one.name == name:
            node.attribute.remove(one)
    node.attribute.append(helper.make_attribute(name, value))


def _dtype_of(tensor: onnx.TensorProto) -> np.dtype[np.generic]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
