"""Writes nodes into a graph: named, with shared constants, before a given node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir import tape

Attributes = Mapping[str, int | float | Sequence[int]]


class GraphWriter:
    """Collects the nodes of one rewriting and puts them into the graph in one place.

    Args:
        graph: The graph that is rewritten.
        prefix: What names begin with ("/attn0").
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self.graph = graph
        self.prefix = prefix
        self._tape = tape.Tape()

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Attributes | None = None,
    ) -> ir.Value:
        """Adds a node of one output; its name is the prefix and `name`, made unique."""
        full = self._unique(f"{self.prefix}/{name}")
        output = ir.Value(name=full)
        return self._tape.op(op_type, inputs, attributes, name=full, output=output)

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int, name: str) -> list[ir.Value]:
        """Adds a Split; the outputs are numbered."""
        full = self._unique(f"{self.prefix}/{name}")
        outputs = [ir.Value(name=f"{full}.{i}") for i in range(len(sizes))]
        lengths = self.integers(sizes)
        self._tape.op_multi_out(
            "Split", [value, lengths], {"axis": axis}, outputs=outputs, name=full
        )
        return outputs

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        """A constant int64 vector, shared between all that need the same."""
        name = "ints_" + "_".join(str(n).replace("-", "m") for n in numbers)
        return self.constant(np.array(numbers, np.int64), name)

    def scalar(self, number: float, dtype: ir.DataType) -> ir.Value:
        """A constant number of a dtype, shared between all that need the same."""
        text = repr(float(number)).replace("-", "m").replace("+", "")
        return self.constant(
            np.array(number).astype(dtype.numpy()), f"{dtype.name.lower()}_{text}"
        )

    def constant(self, array: np.ndarray, name: str) -> ir.Value:
        """An initializer; one of that name is reused, so the name must determine the content."""
        known = self.graph.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )  # fmt: skip
        self.graph.register_initializer(value)
        return value

    def weight(self, array: np.ndarray, name: str) -> ir.Value:
        """An initializer of its own, named after the prefix."""
        return self.constant(array, self._unique(f"{self.prefix}/{name}"))

    def insert_before(self, node: ir.Node) -> None:
        """Puts what was added before a node of the graph."""
        self.graph.insert_before(node, list(self._tape.nodes))
        self._tape = tape.Tape()

    def append(self) -> None:
        """Puts what was added at the end of the graph."""
        self.graph.extend(list(self._tape.nodes))
        self._tape = tape.Tape()

    def _unique(self, name: str) -> str:
        taken = self.graph.meta.setdefault("attnport.names", None)
        if taken is None:
            taken = {n.name for n in self.graph} | set(self.graph.initializers)
            self.graph.meta["attnport.names"] = taken
        unique, count = name, 1
        while unique in taken:
            unique, count = f"{name}_{count}", count + 1
        taken.add(unique)
        return unique
