"""A bfloat16 graph on a machine without bfloat16 kernels: float32 kernels, each result rounded.

ONNX Runtime 1.32 has no bfloat16 MatMul on the CPU. Here the same graph is computed by its float32
kernels, and what each node gives is rounded to bfloat16 before the next one reads it: float32
inside a kernel, bfloat16 between kernels, as GPUs compute it. It is how calibration, mutants and
`attnport bisect` judge a bfloat16 graph; it is no engine to ship, so it is no kind of engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attnport.engines.engine import Engine
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

KIND = "ort-cpu (each node rounded to bfloat16)"


class RoundedEngine(Engine):
    """Runs a bfloat16 graph, rounding after every node.

    Args:
        bundle: For its inputs and outputs.
        graph: The graph to run; the bundle's by default.
        outputs: What it gives; the bundle's outputs by default.
    """

    def __init__(
        self,
        bundle: Bundle,
        graph: onnx.ModelProto | None = None,
        outputs: Sequence[TensorSpec] | None = None,
    ) -> None:
        self.kind = KIND
        self.inputs = bundle.manifest.inputs
        self.outputs = tuple(outputs) if outputs is not None else bundle.manifest.outputs
        rounded = rounded_graph(graph or onnx.load(bundle.model_path))
        self._session: Any = _session(rounded)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        wide = {name: _widened(array) for name, array in feeds.items()}
        names = [spec.name for spec in self.outputs]
        results = self._session.run(names, wide)
        return {
            spec.name: np.asarray(result).astype(numpy_dtype(spec.dtype))
            for spec, result in zip(self.outputs, results, strict=True)
        }

    def placement(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._session = None


def rounded_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph in float32, with every bfloat16 result rounded to bfloat16.

    Args:
        model: A graph with its weights loaded, without subgraphs; it is left as it is.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    narrow = {v.name for v in (*graph.value_info, *graph.input, *graph.output) if _is_bf16(v)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _rounding(_in_float32(node), narrow)
    wide = helper.make_graph(
        nodes,
        graph.name,
        [_value_in_float32(v) for v in graph.input],
        [_value_in_float32(v) for v in graph.output],
        [_weight_in_float32(w) for w in graph.initializer],
    )
    return helper.make_model(
        wide, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # Optimised, a cast there and back again is removed, and with it the rounding.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _rounding(node: onnx.NodeProto, narrow: set[str]) -> list[onnx.NodeProto]:
    found = [node]
    for place, name in enumerate(list(node.output)):
        if name not in narrow:
            continue
        raw, half = f"{name}.unrounded", f"{name}.bfloat16"
        node.output[place] = raw
        found.append(helper.make_node("Cast", [raw], [half], to=TensorProto.BFLOAT16))
        found.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    return found


def _in_float32(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    for attribute in copied.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            if attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
        elif attribute.HasField("t"):
            attribute.t.CopyFrom(_weight_in_float32(attribute.t))
    return copied


def _weight_in_float32(weight: onnx.TensorProto) -> onnx.TensorProto:
    if weight.data_type != TensorProto.BFLOAT16:
        return weight
    return numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float32), weight.name)


def _value_in_float32(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copied = onnx.ValueInfoProto()
    copied.CopyFrom(value)
    if _is_bf16(value):
        copied.type.tensor_type.elem_type = TensorProto.FLOAT
    return copied


def _is_bf16(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.BFLOAT16)


def _widened(array: np.ndarray) -> np.ndarray:
    bf16 = array.dtype == numpy_dtype("bfloat16")
    return array.astype(np.float32) if bf16 else array
