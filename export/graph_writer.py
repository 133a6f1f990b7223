"""Writes nodes into a graph: named, with shared constants, before a given node.

Operators that changed between opsets are written as the graph's own opset has them, 11 to 25.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir import tape

Attributes = Mapping[str, int | float | Sequence[int]]


class GraphWriter:
    """Collects the nodes of one rewriting and puts them into the graph in one place.

    Args:
        graph: The graph that is rewritten.
        prefix: What names begin with ("/attn0").
        root: The model's graph, where `graph` is the body of an If or a Loop: constants go there,
            and names are unique in all of it.
    """

    def __init__(self, graph: ir.Graph, prefix: str, root: ir.Graph | None = None) -> None:
        self.graph = graph
        self.prefix = prefix
        self._root = graph if root is None else root
        self._opset = self._root.opset_imports.get("", 1)
        self._tape = tape.Tape()

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Attributes | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Adds a node of one output; its name is the prefix and `name`, made unique.

        The dtype is said of the output where others need it before shapes are inferred again.
        """
        full = self._unique(f"{self.prefix}/{name}")
        output = ir.Value(name=full, type=None if dtype is None else ir.TensorType(dtype))
        return self._tape.op(op_type, inputs, attributes, name=full, output=output)

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int, name: str) -> list[ir.Value]:
        """Adds a Split; the outputs are numbered."""
        full = self._unique(f"{self.prefix}/{name}")
        outputs = [ir.Value(name=f"{full}.{i}") for i in range(len(sizes))]
        inputs, attributes = self._since(13, value, sizes, "split")
        self._tape.op_multi_out(
            "Split", inputs, {"axis": axis, **attributes}, outputs=outputs, name=full
        )
        return outputs

    def squeeze(self, value: ir.Value, axes: Sequence[int], name: str) -> ir.Value:
        """Adds a Squeeze."""
        inputs, attributes = self._since(13, value, axes, "axes")
        return self.op("Squeeze", inputs, name, attributes)

    def unsqueeze(self, value: ir.Value, axes: Sequence[int], name: str) -> ir.Value:
        """Adds an Unsqueeze."""
        inputs, attributes = self._since(13, value, axes, "axes")
        return self.op("Unsqueeze", inputs, name, attributes)

    def reduce_max(self, value: ir.Value, axes: Sequence[int], name: str) -> ir.Value:
        """Adds a ReduceMax that keeps the axes, with size 1."""
        inputs, attributes = self._since(18, value, axes, "axes")
        return self.op("ReduceMax", inputs, name, {"keepdims": 1, **attributes})

    def greater_or_equal(self, left: ir.Value, right: ir.Value, name: str) -> ir.Value:
        """Adds left >= right of integers: before opset 12 as not left < right."""
        if self._opset >= 12:
            return self.op("GreaterOrEqual", [left, right], name)
        return self.op("Not", [self.op("Less", [left, right], f"{name}_not")], name)

    def sizes(self, value: ir.Value, start: int, end: int, name: str) -> ir.Value:
        """Adds what gives the sizes of the axes from `start` up to, and without, `end`."""
        if self._opset >= 15:
            return self.op("Shape", [value], name, {"start": start, "end": end})
        whole = self.op("Shape", [value], f"{name}_all")
        bounds = [self.integers([n]) for n in (start, end, 0)]
        return self.op("Slice", [whole, *bounds], name)

    def size(self, value: ir.Value, axis: int, name: str) -> ir.Value:
        """Adds what gives the size of one axis, as a scalar."""
        return self.squeeze(self.sizes(value, axis, axis + 1, f"{name}_shape"), [0], name)

    def _since(
        self, opset: int, value: ir.Value, numbers: Sequence[int], attribute: str
    ) -> tuple[list[ir.Value | None], dict[str, Sequence[int]]]:
        """Numbers that are an input since some opset, and an attribute before."""
        if self._opset >= opset:
            return [value, self.integers(numbers)], {}
        return [value], {attribute: numbers}

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
        known = self._root.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )  # fmt: skip
        self._root.register_initializer(value)
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
        taken = self._root.meta.setdefault("attnport.names", None)
        if taken is None:
            taken = set(_names(self._root))
            self._root.meta["attnport.names"] = taken
        unique, count = name, 1
        while unique in taken:
            unique, count = f"{name}_{count}", count + 1
        taken.add(unique)
        return unique


def _names(root: ir.Graph) -> Iterator[str | None]:
    """Of nodes and values, those in bodies of If and Loop among them."""
    yield from (value.name for value in root.inputs)
    yield from root.initializers
    for body in root.subgraphs():
        yield from (value.name for value in body.inputs)
        yield from body.initializers
    for node in root.all_nodes():
        yield node.name
        yield from (value.name for value in node.outputs)
