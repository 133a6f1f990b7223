"""Before and after: a rewritten graph in ONNX Runtime against the float64 value of the original.

The reference is onnx's own evaluator on a float64 copy of the graph before the passes. A row whose
scores are all -inf has the softmax 0 there, as the specification says of dead rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from attnport.export.arrays import numpy_dtype
from attnport.export.records import OutputErrors, OutputReference
from attnport.validate.bound import bound, uninformative

Feeds = Mapping[str, np.ndarray]
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


class Softmax(OpRun):
    """Softmax that gives 0 on dead rows."""

    op_domain = ""

    def _run(self, scores: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        axis = -1 if axis is None else axis
        largest = scores.max(axis, keepdims=True)
        raised = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = raised.sum(axis, keepdims=True)
        return ((raised / np.where(total == 0, 1, total)).astype(scores.dtype),)


def evaluate(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """In the graph's own dtype, by onnx's evaluator."""
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model, new_ops=[Softmax]).run(None, dict(feeds))
    return [np.asarray(result) for result in results]


def run_in_ort(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(result) for result in session.run(None, dict(feeds))]


Runner = Callable[[onnx.ModelProto, Feeds], list[np.ndarray]]


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every floating type is float64."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in copy.graph.initializer:
        _widen(tensor)
    for node in copy.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            elif node.op_type == "Cast" and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
    return copy


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def perturbed(array: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Each number moved by one rounding of the dtype; scalars are written and not measured."""
    if array.dtype.kind != "f" or array.size == 1:
        return array
    step = float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) / 2
    return array * (1 + step * rng.choice((-1, 1), array.shape))


def _perturbed_model(model: onnx.ModelProto, dtype: str, rng: np.random.Generator) -> Any:
    copy = in_float64(model)
    for tensor in copy.graph.initializer:
        moved = perturbed(numpy_helper.to_array(tensor), dtype, rng)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(moved), tensor.name))
    return copy


def wide_feeds(feeds: Feeds) -> dict[str, np.ndarray]:
    return {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feeds.items()}


def references(
    model: onnx.ModelProto, feeds: Feeds
) -> list[tuple[np.ndarray, OutputReference, str]]:
    """For each output the float64 value, what its bound is made of, and its dtype."""
    rng = np.random.default_rng(0)
    wide = wide_feeds(feeds)
    truths = evaluate(in_float64(model), wide)
    own = evaluate(model, feeds)
    found = []
    for index, truth in enumerate(truths):
        dtype = own[index].dtype.name
        shaken = {name: perturbed(array, dtype, rng) for name, array in wide.items()}
        moved = evaluate(_perturbed_model(model, dtype, rng), shaken)[index]
        reference = OutputReference(
            eager=errors(own[index], truth),
            sdpa=None,
            perturbed=errors(moved, truth),
            rms=float(np.sqrt(np.mean(truth**2))),
            max_abs=float(np.abs(truth).max()),
        )
        found.append((truth, reference, dtype))
    return found


def errors(result: np.ndarray, truth: np.ndarray) -> OutputErrors:
    error = np.abs(result.astype(np.float64) - truth)
    return OutputErrors(max=float(error.max()), mean=float(error.mean()))


def assert_close(result: np.ndarray, truth: np.ndarray, known: OutputReference) -> None:
    """Within the parity bound, where that says something."""
    dtype = result.dtype.name
    assert result.shape == truth.shape
    assert np.isfinite(truth).all()
    assert np.isfinite(result).all()
    assert not uninformative(known, dtype)
    error, limit = errors(result, truth), bound(known, dtype)
    assert error.max <= limit.max
    assert error.mean <= limit.mean


def assert_same_numbers(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Feeds | Sequence[Feeds],
    run: Runner = run_in_ort,
) -> None:
    """The graph after, in ONNX Runtime, computes what the graph before means."""
    for one in [feeds] if isinstance(feeds, Mapping) else feeds:
        results = run(after, one)
        for result, (truth, known, _) in zip(results, references(before, one), strict=True):
            assert_close(result, truth, known)


def normal(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def element(model: onnx.ModelProto) -> str:
    """The dtype of the first input."""
    kind = model.graph.input[0].type.tensor_type.elem_type
    return str(helper.tensor_dtype_to_np_dtype(kind).name)
