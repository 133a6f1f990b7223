"""Bundles whose results are known exactly: y is x, in any dtype; and an engine for bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.export.arrays import numpy_dtype, save_arrays
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.records import (
    CaseRecord,
    Dtype,
    Manifest,
    OutputErrors,
    OutputReference,
    TensorSpec,
)

WIDTH = 8
AXES = {"batch": (1, 2, 8), "seq": (1, 4, 16)}
_ONNX = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "uint8": TensorProto.UINT8,
}


def sample(dtype: str, rows: int = 2, tokens: int = 3, seed: int = 0) -> np.ndarray:
    """Random values of a dtype: (rows, tokens, WIDTH)."""
    draws = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    shape = (rows, tokens, WIDTH)
    if dtype == "bool":
        return draws.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        return draws.integers(0, 100, shape).astype(kind)
    return draws.standard_normal(shape).astype(np.float32).astype(kind)


def identity_bundle(
    folder: Path,
    dtype: Dtype,
    *,
    name: str = "identity",
    shape: tuple[int | str, ...] = ("batch", "seq", WIDTH),
    high: int | None = None,
    cases: tuple[tuple[int, int], ...] = ((1, 1), (2, 3)),
) -> Bundle:
    """Y = x, with its cases."""
    folder.mkdir(parents=True)
    dims = list(shape)
    tensors = [helper.make_tensor_value_info(n, _ONNX[dtype], dims) for n in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "identity", tensors[:1], tensors[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
        folder / MODEL,
    )
    records = tuple(_write_case(folder, dtype, b, n) for b, n in cases)
    files = (MODEL, *(record.file for record in records))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source="",
        dtype=dtype,
        form="pattern",
        opset=18,
        axes=AXES,
        inputs=(TensorSpec(name="x", dtype=dtype, shape=shape, high=high),),
        outputs=(TensorSpec(name="y", dtype=dtype, shape=shape),),
        graph_sha256=file_sha256(folder / MODEL),
        weights_sha256="",
        files={file: file_sha256(folder / file) for file in files},
        versions={},
        passes=(),
        attentions=(),
        projection_groups=(),
        cases=records,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    return Bundle.load(folder)


def _write_case(folder: Path, dtype: str, rows: int, tokens: int) -> CaseRecord:
    (folder / "cases").mkdir(exist_ok=True)
    x = sample(dtype, rows, tokens, seed=rows)
    truth = x.astype(np.float64)
    name = f"b{rows}n{tokens}"
    file = f"cases/{name}.safetensors"
    save_arrays({"input.x": x, "reference.y": truth}, folder / file)
    exact = OutputErrors(max=0.0, mean=0.0)
    reference = OutputReference(
        eager=exact,
        sdpa=None,
        perturbed=exact,
        rms=float(np.sqrt(np.mean(truth**2))),
        max_abs=float(np.abs(truth).max()),
    )
    sizes = {"batch": rows, "seq": tokens}
    return CaseRecord(name=name, file=file, seed=rows, sizes=sizes, references={"y": reference})


class NumpyIdentity(Engine):
    """Computes y = x in numpy: for bfloat16, which no engine on a CPU takes as arrays."""

    def __init__(self, bundle: Bundle) -> None:
        self.kind = "numpy"
        self.inputs, self.outputs = bundle.manifest.inputs, bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": self._check(feeds)["x"].copy()}

    def placement(self) -> dict[str, int]:
        return {}
