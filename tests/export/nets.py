"""ONNX graphs of one attention, written node by node in whichever way a test is about.

Letters: B batch, N query tokens, T key tokens, H heads, Dh head size, D = WIDTH = H·Dh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper, shape_inference

from attnport.axes import Axis
from attnport.export.arrays import numpy_dtype
from attnport.export.passes import View, inspect_graph, look_at, run_passes
from attnport.export.records import Form, Inspection, PassRecord

HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
AXES = {"batch": Axis("batch", 1, 2, 5), "seq": Axis("seq", 1, 7, 16)}

Operand = str | float | int | list[int] | np.ndarray | None
Heads = tuple[str, str, str]


class Net:
    """A graph under construction; operands that are no names become initializers.

    A list of int is an int64 vector, an int an int64 scalar, a float a scalar of the net's dtype.
    """

    def __init__(self, *, opset: int = 18, dtype: str = "float32", seed: int = 0) -> None:
        self.kind = numpy_dtype(dtype)
        self.opset = opset
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: str | None = None) -> str:
        kind = numpy_dtype(dtype) if dtype else self.kind
        element = helper.np_dtype_to_tensor_dtype(kind)
        if name not in [value.name for value in self._inputs]:  # several blocks share a mask
            self._inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def op(self, op_type: str, *operands: Operand, **attributes: Any) -> str:
        return self.ops(op_type, 1, *operands, **attributes)[0]

    def ops(
        self, op_type: str, count: int, *operands: Operand, domain: str = "", **attributes: Any
    ) -> list[str]:
        number = len(self._nodes)
        outputs = [f"{op_type.lower()}{number}_{i}" for i in range(count)]
        names = [self._operand(operand) for operand in operands]
        node = helper.make_node(
            op_type, names, outputs, name=f"n{number}_{op_type}", domain=domain, **attributes
        )
        self._nodes.append(node)
        return outputs

    def weight(self, rows: int = WIDTH, columns: int = WIDTH) -> str:
        array = self._rng.standard_normal((rows, columns)) / math.sqrt(rows)
        return self._constant(array.astype(self.kind))

    def heads_weight(self) -> str:
        """(D,H,Dh)."""
        array = self._rng.standard_normal((WIDTH, HEADS, SIZE)) / math.sqrt(WIDTH)
        return self._constant(array.astype(self.kind))

    def vector(self, size: int = WIDTH) -> str:
        return self._constant(self._rng.standard_normal(size).astype(self.kind))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The graph with these outputs, checked."""
        element = helper.np_dtype_to_tensor_dtype(self.kind)
        results = [helper.make_tensor_value_info(name, element, None) for name in outputs]
        graph = helper.make_graph(self._nodes, "net", self._inputs, results, self._constants)
        domains = {node.domain for node in self._nodes} - {""}
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(domain, 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        model = shape_inference.infer_shapes(model)
        del model.graph.value_info[:]  # a file need not hold what only inference found
        for value in model.graph.output:
            if not value.type.tensor_type.HasField("shape"):
                value.CopyFrom(helper.make_tensor_value_info(value.name, element, ["b", "n", "w"]))
        onnx.checker.check_model(model)
        return model

    def _operand(self, operand: Operand) -> str:
        if operand is None:
            return ""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, float):
            return self._constant(np.array(operand).astype(self.kind))
        if isinstance(operand, np.ndarray):
            return self._constant(operand)
        return self._constant(np.array(operand, np.int64))

    def _constant(self, array: np.ndarray) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name


def project(net: Net, x: str, columns: int = WIDTH, *, bias: bool = False) -> str:
    """X·W or X·W + b, (B,N,D) -> (B,N,columns)."""
    product = net.op("MatMul", x, net.weight(WIDTH, columns))
    return net.op("Add", product, net.vector(columns)) if bias else product


def split_heads(net: Net, rows: str, heads: int = HEADS, size: int = SIZE) -> str:
    """(B,N,H·Dh) -> (B,H,N,Dh)."""
    reshaped = net.op("Reshape", rows, [0, 0, heads, size])
    return net.op("Transpose", reshaped, perm=[0, 2, 1, 3])


def merge_heads(net: Net, context: str, width: int = WIDTH) -> str:
    """(B,H,N,Dh) -> (B,N,H·Dh)."""
    turned = net.op("Transpose", context, perm=[0, 2, 1, 3])
    return net.op("Reshape", turned, [0, 0, width])


def separate(net: Net, x: str) -> Heads:
    """Three products without bias, heads by Reshape and Transpose."""
    q, k, v = (split_heads(net, project(net, x)) for _ in range(3))
    return q, k, v


def turn(net: Net, key: str) -> str:
    """(B,H,T,Dh) -> (B,H,Dh,T)."""
    return net.op("Transpose", key, perm=[0, 1, 3, 2])


def scaled_product(net: Net, q: str, k: str) -> str:
    """Q·Kᵀ, and then the scale."""
    return net.op("Mul", net.op("MatMul", q, turn(net, k)), 1 / math.sqrt(SIZE))


def unmasked(net: Net, scores: str) -> str:
    return scores


def softmax(net: Net, scores: str) -> str:
    return net.op("Softmax", scores, axis=-1)


def self_attention(
    *,
    make_heads: Callable[[Net, str], Heads] = separate,
    score: Callable[[Net, str, str], str] = scaled_product,
    hide: Callable[[Net, str], str] = unmasked,
    normalise: Callable[[Net, str], str] = softmax,
    opset: int = 18,
    dtype: str = "float32",
    output_bias: bool = False,
) -> onnx.ModelProto:
    """One self-attention from `x` (B,N,D), with W_O; each part as it is asked for."""
    net = Net(opset=opset, dtype=dtype)
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = make_heads(net, x)
    weights = normalise(net, hide(net, score(net, q, k)))
    context = net.op("MatMul", weights, v)
    return net.model(project(net, merge_heads(net, context), bias=output_bias))


def lengths(net: Net, value: str = "x", axis: int = 1) -> str:
    """The size of an axis as a scalar, from Shape."""
    size = net.op("Shape", value, start=axis, end=axis + 1)
    return net.op("Squeeze", size, [0])


def positions(net: Net) -> tuple[str, str]:
    """The positions of queries as a column (N,1) and of keys as a row (T,)."""
    numbers = net.op("Range", 0, lengths(net), 1)
    return net.op("Unsqueeze", numbers, [1]), numbers


def causal_visible(net: Net) -> str:
    """(N,T) bool, from a comparison of positions."""
    rows, columns = positions(net)
    return net.op("GreaterOrEqual", rows, columns)


def square(net: Net) -> str:
    """[N, N], the shape of the scores' last two axes."""
    size = net.op("Shape", "x", start=1, end=2)
    return net.op("Concat", size, size, axis=0)


def to_ir(model: onnx.ModelProto) -> ir.Model:
    return ir.serde.deserialize_model(model)


def inspect_net(model: onnx.ModelProto) -> Inspection:
    """What the passes find in it."""
    return inspect_graph(to_ir(model).graph, AXES)


def view_of(model: onnx.ModelProto) -> View:
    """Its attentions, and the graph at concrete sizes."""
    return look_at(to_ir(model).graph, AXES)


@dataclass(frozen=True)
class Done:
    """What the passes say that they did."""

    records: tuple[PassRecord, ...]

    @property
    def changed(self) -> int:
        return sum(record.changed for record in self.records)

    @property
    def merge(self) -> PassRecord:
        return self._named("merge_qkv")

    @property
    def write(self) -> PassRecord:
        return self._named("write_")

    def _named(self, start: str) -> PassRecord:
        (record,) = [record for record in self.records if record.name.startswith(start)]
        return record


def passed(model: onnx.ModelProto, form: Form = "pattern") -> tuple[onnx.ModelProto, Done]:
    """The model after the passes, checked, and what they say that they did."""
    rewritten = to_ir(model)
    records = run_passes(rewritten, AXES, form)
    proto = ir.serde.serialize_model(rewritten)
    onnx.checker.check_model(proto, full_check=True)
    return proto, Done(records)


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]
