"""What a graph computes at concrete sizes: every shape, and every small tensor of known data.

A pass that must know what a chain of Reshape, Transpose, Slice and Gather *does* need not know how
it was written: it asks at two or three sizes and looks at the answer. Shapes come from ONNX's own
inference node by node; data from its reference implementation, wherever it follows from shapes,
constants and the feeds that the caller gives (a random mask, say).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference
from onnx.reference import ReferenceEvaluator

from attnport.export import capture_operator

logger = logging.getLogger(__name__)

# Known data is for masks, indices and shapes; a tensor above this is a weight or an activation.
_MAX_ELEMENTS = 1 << 22
# Ops whose result is not a function of their inputs.
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"}


class ConcreteGraph:
    """A graph with a number in place of every symbol.

    Args:
        graph: The graph; it is not changed.
        sizes: The number for each symbolic dimension of the inputs.
        feeds: Data for some of the inputs, by name.
        limits: The largest number that a symbol can be, where it is known.
    """

    def __init__(
        self,
        graph: ir.Graph,
        sizes: Mapping[str, int],
        feeds: Mapping[str, np.ndarray] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.sizes = dict(sizes)
        self.limits = dict(limits or {})
        self._graph = graph
        self._resized: dict[tuple[str, int], ConcreteGraph] = {}
        self._opsets = dict(graph.opset_imports)
        self._types: dict[ir.Value, onnx.TypeProto] = {}
        self._data: dict[ir.Value, np.ndarray] = {}
        for value in graph.inputs:
            self._take_input(value, (feeds or {}).get(value.name or ""))
        for value in graph.initializers.values():
            self._take_constant(value)
        for node in graph:
            self._take_node(node)

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The concrete shape, or None where it cannot be known."""
        kind = self._types.get(value)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        if not all(dim.HasField("dim_value") for dim in dims):
            return None
        return tuple(dim.dim_value for dim in dims)

    def data(self, value: ir.Value) -> np.ndarray | None:
        """The value itself, where it follows from shapes, constants and feeds alone."""
        if value not in self._data:
            constant = constant_array(value)
            if constant is None:
                return None
            self._data[value] = constant
        return self._data[value]

    def scalar(self, value: ir.Value | None) -> float | None:
        """The number that the value holds once (whatever its rank); None for anything else."""
        data = self.data(value) if value is not None else None
        return float(data.reshape(())) if data is not None and data.size == 1 else None

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The type of the elements, where it can be known."""
        kind = self._types.get(value)
        return ir.DataType(kind.tensor_type.elem_type) if kind is not None else value.dtype

    def values(self) -> Iterator[ir.Value]:
        """Everything that nodes of the graph compute."""
        for node in self._graph:
            yield from _present(node.outputs)

    def resized(self, symbol: str, size: int) -> ConcreteGraph:
        """The same graph with another number in place of one symbol."""
        key = (symbol, size)
        if key not in self._resized:
            sizes = {**self.sizes, symbol: size}
            self._resized[key] = ConcreteGraph(self._graph, sizes, limits=self.limits)
        return self._resized[key]

    def _take_input(self, value: ir.Value, feed: np.ndarray | None) -> None:
        if feed is not None:
            self._set_data(value, feed)
            return
        if value.shape is None:
            return
        shape = [
            dim if isinstance(dim, int) else self.sizes.get(dimension_name(value, position))
            for position, dim in enumerate(value.shape)
        ]
        if value.dtype is not None:
            self._types[value] = onnx.helper.make_tensor_type_proto(value.dtype.value, shape)

    def _take_constant(self, value: ir.Value) -> None:
        if value.const_value is not None:
            self._types[value] = onnx.helper.make_tensor_type_proto(
                value.const_value.dtype.value, list(value.const_value.shape.numpy())
            )

    def _size(self, dim: int | ir.SymbolicDim) -> int | None:
        return dim if isinstance(dim, int) else self.sizes.get(str(dim.value))

    def _take_node(self, node: ir.Node) -> None:
        if self._evaluate(node):
            return
        if node.domain == capture_operator.DOMAIN:
            self._take_captured_attention(node)
            return
        try:
            self._infer(node)
        except Exception as err:
            # Inference refuses what it does not know (a custom operator): the passes then leave
            # alone whatever depends on it, and say so.
            logger.debug("no shapes for %s (%s): %s", node.name, node.op_type, err)
            self._fall_back(node)

    def _evaluate(self, node: ir.Node) -> bool:
        """Computes the node's outputs where all it needs is known."""
        if node.domain or node.op_type in _RANDOM or has_subgraph(node):
            return False
        if node.op_type == "Shape":
            return self._evaluate_shape(node)
        feeds: dict[str, np.ndarray] = {}
        for value in node.inputs:
            if value is None:
                continue
            data = self.data(value)
            if data is None:
                return False
            feeds[str(value.name)] = data
        if node.op_type == "Expand" and np.prod(feeds[str(node.inputs[1].name)]) > _MAX_ELEMENTS:  # type: ignore[union-attr]
            return False
        try:
            model = _single_node_model(node, self._opsets)
            results = ReferenceEvaluator(model).run(None, feeds)
        except Exception as err:  # the reference lacks an operator, or the sizes do not fit it
            logger.debug("no data for %s (%s): %s", node.name, node.op_type, err)
            return False
        for value, result in zip(_present(node.outputs), results, strict=True):
            self._set_data(value, np.asarray(result))
        return True

    def _evaluate_shape(self, node: ir.Node) -> bool:
        shape = self.shape(node.inputs[0]) if node.inputs[0] is not None else None
        if shape is None:
            return False
        start = node.attributes.get_int("start", 0)
        end = node.attributes.get_int("end", len(shape))
        self._set_data(node.outputs[0], np.array(shape[start:end], np.int64))
        return True

    def _infer(self, node: ir.Node) -> None:
        version = self._opsets.get(node.domain, 1)
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        types = {}
        data = {}
        for value in node.inputs:
            if value is None:
                continue
            if value not in self._types:
                raise LookupError(f"the type of {value.name} is unknown")
            types[str(value.name)] = self._types[value]
            known = self.data(value) if _is_small_integer(self._types[value]) else None
            if known is not None:
                data[str(value.name)] = onnx.numpy_helper.from_array(known, value.name)
        found = shape_inference.infer_node_outputs(
            schema,
            ir.serde.serialize_node(node),
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in self._opsets.items()],
        )
        for value in node.outputs:
            if value.name in found:
                self._types[value] = found[value.name]

    def _take_captured_attention(self, node: ir.Node) -> None:
        """The context has the query's shape, but for the value's last axis."""
        query, _, value = node.inputs[:3]
        shapes = [self.shape(v) if v is not None else None for v in (query, value)]
        if shapes[0] is not None and shapes[1] is not None and query is not None:
            element = self._types[query].tensor_type.elem_type
            self._types[node.outputs[0]] = onnx.helper.make_tensor_type_proto(
                element, [*shapes[0][:-1], shapes[1][-1]]
            )

    def _fall_back(self, node: ir.Node) -> None:
        """Takes the file's own annotation where it has one that the sizes make concrete."""
        for value in node.outputs:
            if value.dtype is None or value.shape is None:
                continue
            shape = [self._size(dim) for dim in value.shape]
            if None not in shape:
                self._types[value] = onnx.helper.make_tensor_type_proto(value.dtype.value, shape)

    def _set_data(self, value: ir.Value, array: np.ndarray) -> None:
        if array.size <= _MAX_ELEMENTS:
            self._data[value] = array
        element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self._types[value] = onnx.helper.make_tensor_type_proto(element, array.shape)


def dimension_name(value: ir.Value, position: int) -> str:
    """The symbol of a dimension that is no number, or what it is called for want of one."""
    dim = value.shape[position] if value.shape is not None else None
    symbol = dim.value if isinstance(dim, ir.SymbolicDim) else None
    return str(symbol) if symbol is not None else f"{value.name}[{position}]"


def constant_array(value: ir.Value) -> np.ndarray | None:
    """The data of an initializer or Constant of moderate size; None for anything else."""
    tensor = value.const_value
    if tensor is None or tensor.size > _MAX_ELEMENTS:
        return None
    return tensor.numpy()


def constant_scalar(value: ir.Value | None) -> float | None:
    """The number that a constant holds once (whatever its rank); None for anything else."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(()))


def static_scalar(value: ir.Value | None, graphs: Sequence[ConcreteGraph]) -> float | None:
    """The number that a value is at all sizes: a constant, or made of the head size, say.

    Args:
        value: The value.
        graphs: Its graph at two or more concrete sizes.
    """
    constant = constant_scalar(value)
    if constant is not None or value is None or not graphs:
        return constant
    return graphs[0].scalar(value) if _is_static(value, graphs) else None


def _is_static(value: ir.Value, graphs: Sequence[ConcreteGraph], depth: int = 0) -> bool:
    """Whether a value follows from constants, and from dimensions that are no symbol."""
    if value.const_value is not None:
        return True
    node = value.producer()
    if node is None or depth > 12:
        return False
    if _selects_from_shape(node):
        # A function of sizes may be the same at some of them; one size that is so is no symbol.
        found = [graph.data(value) for graph in graphs]
        return all(f is not None and np.array_equal(f, found[0]) for f in found)  # type: ignore[arg-type]
    inputs = [v for v in node.inputs if v is not None]
    return bool(inputs) and all(_is_static(v, graphs, depth + 1) for v in inputs)


def _selects_from_shape(node: ir.Node) -> bool:
    while node.op_type in ("Gather", "Slice", "Squeeze", "Unsqueeze", "Identity"):
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if source is None:
            return False
        node = source
    return node.op_type == "Shape"


def has_subgraph(node: ir.Node) -> bool:
    """Whether the node holds a graph of its own (If, Loop, Scan)."""
    return any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for attribute in node.attributes.values()
    )


def _present(values: Sequence[ir.Value]) -> list[ir.Value]:
    return [value for value in values if value.name]


def _is_small_integer(kind: onnx.TypeProto) -> bool:
    tensor = kind.tensor_type
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return tensor.elem_type in integers and len(tensor.shape.dim) <= 1


def _single_node_model(node: ir.Node, opsets: Mapping[str, int]) -> onnx.ModelProto:
    proto = ir.serde.serialize_node(node)
    unknown = onnx.TypeProto()
    graph = onnx.helper.make_graph(
        [proto],
        "node",
        [
            onnx.helper.make_value_info(name, unknown)
            for name in dict.fromkeys(proto.input)
            if name
        ],
        [onnx.helper.make_value_info(name, unknown) for name in proto.output if name],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.helper.make_model(graph, opset_imports=imports)
