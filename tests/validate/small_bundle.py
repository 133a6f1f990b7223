"""A small real bundle, made by hand: y = softmax(scale · X·W_Q (X·W_K)ᵀ + causal) X·W_V, on disk.

Letters: B batch, N tokens, D width, H heads, Dh head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from attnport.export.arrays import numpy_dtype, save_arrays
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.records import (
    AttentionInfo,
    CaseRecord,
    Dtype,
    Inspection,
    Manifest,
    OutputErrors,
    OutputReference,
    ProjectionGroup,
    TensorSpec,
)

HEADS, HEAD_SIZE = 2, 16
WIDTH = HEADS * HEAD_SIZE
SIZES = ((1, 1), (2, 7), (3, 16))  # (B, N)
SMALLEST_STEP = {"float32": 2.0**-24, "float16": 2.0**-11}  # one rounding, relative


@dataclass(frozen=True)
class Fault:
    """What is wrong with the graph; nothing by default."""

    scale: float = 1.0
    diagonal: int = 0
    heads: tuple[int, int] = (0, 1)


def attention(
    x: np.ndarray,
    weight: np.ndarray,
    fault: Fault = Fault(),
    dtype: str = "float64",
) -> np.ndarray:
    """Causal attention, each step rounded to the dtype: (B, N, D), (D, 3D) -> (B, N, D)."""
    kind = numpy_dtype(dtype)
    b, n, _ = x.shape
    qkv = (x.astype(kind) @ weight.astype(kind)).reshape(b, n, 3, HEADS, HEAD_SIZE)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)  # (B, H, N, Dh) each
    scores = (q @ k.transpose(0, 1, 3, 2)) * kind.type(fault.scale / math.sqrt(HEAD_SIZE))
    hidden = ~np.tril(np.ones((n, n), bool), fault.diagonal)
    scores = np.where(hidden, kind.type(-np.inf), scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    context = (weights @ v)[:, list(fault.heads)]
    return np.asarray(context.transpose(0, 2, 1, 3).reshape(b, n, WIDTH))


def model(weight: np.ndarray, dtype: str, fault: Fault = Fault()) -> onnx.ModelProto:
    """The same as an ONNX graph with one QKV product."""
    kind = numpy_dtype(dtype)
    constants = {
        "w": weight.astype(kind),
        "scale": np.asarray(fault.scale / math.sqrt(HEAD_SIZE), kind),
        "hide": np.asarray(-np.inf, kind),
        "zero": np.asarray(0, kind),
        "ones": np.ones((64, 64), bool),
        "diagonal": np.asarray(fault.diagonal, np.int64),
        "split": np.asarray([0, 0, 3, HEADS, HEAD_SIZE], np.int64),
        "join": np.asarray([0, 0, WIDTH], np.int64),
        "order": np.asarray(fault.heads, np.int64),
        "i0": np.asarray(0, np.int64),
        "i1": np.asarray(1, np.int64),
        "i2": np.asarray(2, np.int64),
        "from": np.asarray([0, 0], np.int64),
        "axes": np.asarray([0, 1], np.int64),
    }

    def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        name = f"/attn0/{output}"
        return helper.make_node(op, inputs.split(), [output], name=name, **attributes)

    nodes = [
        node("MatMul", "x w", "qkv"),
        node("Reshape", "qkv split", "heads"),
        node("Transpose", "heads", "apart", perm=[2, 0, 3, 1, 4]),
        node("Gather", "apart i0", "q", axis=0),
        node("Gather", "apart i1", "k", axis=0),
        node("Gather", "apart i2", "v", axis=0),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "products"),
        node("Mul", "products scale", "scores"),
        node("Shape", "x", "n", start=1, end=2),
        node("Concat", "n n", "to", axis=0),
        node("Slice", "ones from to axes", "square"),
        node("Cast", "square", "square8", to=onnx.TensorProto.FLOAT),
        node("Trilu", "square8 diagonal", "lower", upper=0),
        node("Cast", "lower", "visible", to=onnx.TensorProto.BOOL),
        node("Where", "visible zero hide", "mask"),
        node("Add", "scores mask", "masked"),
        node("Softmax", "masked", "softmax", axis=-1),
        node("MatMul", "softmax v", "context"),
        node("Gather", "context order", "ordered", axis=1),
        node("Transpose", "ordered", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back join", "y"),
    ]
    element = helper.np_dtype_to_tensor_dtype(kind)
    shape: list[str | int | None] = ["batch", "seq", WIDTH]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(made)
    return made


def inspection(*, merged: bool = True) -> Inspection:
    """What an inspection of the graph gives."""
    one = AttentionInfo(
        name="attn0",
        source="pattern",
        nodes=("/attn0/products", "/attn0/softmax", "/attn0/context"),
        heads=HEADS,
        kv_heads=HEADS,
        head_size=HEAD_SIZE,
        scale=1 / math.sqrt(HEAD_SIZE),
        mask="none",
        causal=True,
        dead_rows=False,
        recognised=True,
    )
    group = ProjectionGroup(
        name="attn0/qkv",
        attention="attn0",
        kind="qkv",
        nodes=("/attn0/qkv",) if merged else ("/attn0/q", "/attn0/k", "/attn0/v"),
        sizes=(WIDTH, WIDTH, WIDTH),
        merged=merged,
    )
    return Inspection(attentions=(one,), projection_groups=(group,))


def make_bundle(folder: Path, dtype: Dtype = "float32", *, seed: int = 0) -> Bundle:
    """Writes the bundle and opens it as a user would."""
    folder.mkdir()
    draws = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    weight = (draws.standard_normal((WIDTH, 3 * WIDTH)) / math.sqrt(WIDTH)).astype(kind)
    onnx.save(model(weight, dtype), folder / MODEL)
    save_arrays({"weight": weight}, folder / "weight.safetensors")
    cases = tuple(_write_case(folder, weight, dtype, b, n, draws) for b, n in SIZES)
    found = inspection()
    shape = ("batch", "seq", WIDTH)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="small",
        source="",
        dtype=dtype,
        form="pattern",
        opset=18,
        axes={"batch": (1, 2, 3), "seq": (1, 7, 16)},
        inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),),
        outputs=(TensorSpec(name="y", dtype=dtype, shape=shape),),
        graph_sha256=file_sha256(folder / MODEL),
        weights_sha256="",
        files={name: file_sha256(folder / name) for name in (MODEL, *(c.file for c in cases))},
        versions={},
        passes=(),
        attentions=found.attentions,
        projection_groups=found.projection_groups,
        cases=cases,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    return Bundle.load(folder)


def weight_of(bundle: Bundle) -> np.ndarray:
    from attnport.export.arrays import load_arrays

    return load_arrays(bundle.path / "weight.safetensors")["weight"]


def _write_case(
    folder: Path, weight: np.ndarray, dtype: str, b: int, n: int, draws: np.random.Generator
) -> CaseRecord:
    (folder / "cases").mkdir(exist_ok=True)
    x = draws.standard_normal((b, n, WIDTH)).astype(numpy_dtype(dtype))
    wide, wide_weight = x.astype(np.float64), weight.astype(np.float64)
    truth = attention(wide, wide_weight)
    step = SMALLEST_STEP[dtype]
    shaken = attention(
        wide * (1 + step * draws.choice((-1, 1), wide.shape)),
        wide_weight * (1 + step * draws.choice((-1, 1), wide_weight.shape)),
    )
    name = f"b{b}n{n}"
    file = f"cases/{name}.safetensors"
    save_arrays({"input.x": x, "reference.y": truth}, folder / file)
    reference = OutputReference(
        eager=_errors(attention(x, weight, dtype=dtype), truth),
        sdpa=None,
        perturbed=_errors(shaken, truth),
        rms=float(np.sqrt(np.mean(truth**2))),
        max_abs=float(np.max(np.abs(truth))),
    )
    sizes = {"batch": b, "seq": n}
    return CaseRecord(name=name, file=file, seed=0, sizes=sizes, references={"y": reference})


def _errors(result: np.ndarray, truth: np.ndarray) -> OutputErrors:
    error = np.abs(result.astype(np.float64) - truth)
    return OutputErrors(max=float(error.max()), mean=float(error.mean()))


def with_reference(bundle: Bundle, case: str, **changes: object) -> Bundle:
    """The same bundle with other things known of y in one case."""
    records = []
    for record in bundle.manifest.cases:
        if record.name == case:
            changed = record.references["y"].model_copy(update=changes)
            record = record.model_copy(update={"references": {"y": changed}})
        records.append(record)
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"cases": tuple(records)}))
