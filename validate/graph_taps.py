"""Reads the tensors inside a graph: in float64 for what they should be, in the engine for what they are.

A few at a time, as many as the memory budget holds: a graph has hundreds of tensors, and the scores
of one attention alone may be a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_PATH, _STACK = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.stack_trace"


@dataclass(frozen=True)
class Tap:
    """A floating tensor inside a graph.

    Attributes:
        name: Its name.
        node: The node that makes it.
        element: Its ONNX element type.
        nbytes: Its size at the sizes of the case, in float64; 0 where unknown.
    """

    name: str
    node: onnx.NodeProto
    element: int
    nbytes: int


def taps_of(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[Tap]:
    """Every floating tensor that a node makes of floating inputs, in topological order.

    Those made of masks and sizes alone are left out: each module writes them in its own way.

    Args:
        model: A graph with its weights.
        inputs: A case, for the sizes.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        if value.name in inputs:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, inputs[value.name].shape, strict=True):
                dim.dim_value = size
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    known = {v.name: v.type.tensor_type for v in (*inferred.value_info, *inferred.output)}
    live = {v.name for v in model.graph.input if v.type.tensor_type.elem_type in _FLOATS}
    found = []
    for node in model.graph.node:
        # What is asked of a tensor's size is no number of it.
        if node.op_type in ("Shape", "Size") or live.isdisjoint(node.input):
            continue
        live.update(node.output)
        for name in node.output:
            kind = known.get(name)
            if kind is not None and kind.elem_type in _FLOATS:
                sizes = [dim.dim_value for dim in kind.shape.dim]
                found.append(Tap(name, node, kind.elem_type, 8 * int(np.prod(sizes))))
    return found


def in_groups(taps: Sequence[Tap], memory_bytes: int) -> Iterator[list[Tap]]:
    """Groups that fit the budget together; a tensor that exceeds it alone is a group of its own."""
    most = max((tap.nbytes for tap in taps), default=0)
    group: list[Tap] = []
    total = 0
    for tap in taps:
        size = tap.nbytes or most
        if group and total + size > memory_bytes:
            yield group
            group, total = [], 0
        group.append(tap)
        total += size
    if group:
        yield group


def with_outputs(model: onnx.ModelProto, taps: Sequence[Tap]) -> onnx.ModelProto:
    """The graph, giving these tensors, too."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    given = {output.name for output in made.graph.output}
    for tap in taps:
        if tap.name not in given:
            value = helper.make_tensor_value_info(tap.name, tap.element, None)
            made.graph.output.append(value)
    return made


def double_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in float64: every floating weight, input, output and cast."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    del graph.value_info[:]
    for weight in graph.initializer:
        weight.CopyFrom(_double(weight))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            elif attribute.HasField("t"):
                attribute.t.CopyFrom(_double(attribute.t))
            elif node.op_type == "LayerNormalization" and attribute.name == "stash_type":
                attribute.i = TensorProto.DOUBLE
    return made


def shaken(model: onnx.ModelProto, step: float) -> onnx.ModelProto:
    """A float64 graph, every weight moved by one rounding of a low dtype."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    draws = np.random.Generator(np.random.PCG64(0))
    for weight in made.graph.initializer:
        if weight.data_type == TensorProto.DOUBLE:
            array = numpy_helper.to_array(weight)
            moved = array * (1 + step * draws.choice((-1.0, 1.0), array.shape))
            weight.CopyFrom(numpy_helper.from_array(moved, weight.name))
    return made


def run_double(
    model: onnx.ModelProto, taps: Sequence[Tap], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The tensors of a float64 graph; by onnx's own evaluator where onnxruntime has no kernel."""
    tapped = with_outputs(model, [Tap(t.name, t.node, TensorProto.DOUBLE, 0) for t in taps])
    feeds = {name: _wide(array) for name, array in inputs.items()}
    names = [tap.name for tap in taps]
    run: Any
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        run = onnxruntime.InferenceSession(
            tapped.SerializeToString(), options, providers=["CPUExecutionProvider"]
        ).run
        return dict(zip(names, run(names, feeds), strict=True))
    except Exception:  # no kernel for an operator in float64, or a graph beyond protobuf's 2 GiB
        from onnx.reference import ReferenceEvaluator

        run = ReferenceEvaluator(tapped).run
        return dict(zip(names, run(names, feeds), strict=True))


def origin_of(node: onnx.NodeProto) -> tuple[str, str]:
    """The module path and the source line that the exporter recorded; "" where it did not."""
    recorded = {prop.key: prop.value for prop in node.metadata_props}
    scopes = recorded.get(_PATH, "")
    parts = [part.strip(" '\"") for part in scopes.strip("[]").split(",")]
    path = parts[-2] if len(parts) > 1 else ""
    lines = []
    for text in recorded.get(_STACK, "").splitlines():
        if text.strip().startswith("File "):
            file, _, rest = text.strip()[6:].partition('", line ')
            lines.append(f"{file}:{rest.split(',')[0]}")
    # The innermost line of the user's own: those of torch.nn say nothing of the model.
    own = [line for line in lines if "/site-packages/torch/" not in line]
    return path, (own or lines or [""])[-1]


def _double(weight: onnx.TensorProto) -> onnx.TensorProto:
    if weight.data_type not in _FLOATS:
        return weight
    return numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float64), weight.name)


def _wide(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biu" else array.astype(np.float64)
