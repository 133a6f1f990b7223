"""GELU's factors in the order that ONNX Runtime fuses, and products that only look like it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from tests.export.evaluation import normal, run_in_ort
from tests.export.nets import to_ir

from attnport.export.gelu_order import has_gelus, reorder_gelus

GELU = """
scaled = Div (x, root)
risen = Erf (scaled)
grown = Add (risen, one)
"""
INNER = "product = Mul (half, grown)\ny = Mul (x, product)\n"


def model_of(body: str, half: float = 0.5) -> onnx.ModelProto:
    text = (
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        "gelu (float[n,8] x) => (float[n,8] y) <float root = {1.4142135}, float one = {1.0}, "
        f"float half = {{{half}}}> {{{body}}}"
    )
    return parser.parse_model(text)


def reordered(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    found = to_ir(model)
    assert has_gelus(found.graph) == (reorder_gelus(found.graph).changed > 0)
    again = to_ir(model)
    changed = reorder_gelus(again.graph).changed
    return ir.serde.serialize_model(again), changed


@pytest.mark.parametrize(
    "end",
    [
        INNER,
        "product = Mul (grown, half)\ny = Mul (product, x)\n",
        "product = Mul (half, grown)\ny = Mul (product, x)\n",
    ],
)
def test_the_numbers_stay_to_the_last_bit(end: str) -> None:
    model = model_of(GELU + end)
    lowered, changed = reordered(model)
    assert changed == 1
    onnx.checker.check_model(lowered, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = {"x": normal((5, 8))}
    (before,), (after,) = (
        onnxruntime.InferenceSession(
            one.SerializeToString(), options, providers=["CPUExecutionProvider"]
        ).run(None, x)
        for one in (model, lowered)
    )
    assert np.array_equal(before, after)


def test_onnx_runtime_makes_one_kernel_of_it(tmp_path: Path) -> None:
    """Where the first fails, ONNX Runtime has learnt torch's order: this lowering can go."""
    model = model_of(GELU + INNER)
    assert "Gelu" not in kernels(model, tmp_path)
    assert kernels(reordered(model)[0], tmp_path) == ["Gelu"]


def kernels(model: onnx.ModelProto, folder: Path) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_reordering_is_idempotent() -> None:
    lowered, _ = reordered(model_of(GELU + INNER))
    assert reordered(lowered)[1] == 0


@pytest.mark.parametrize(
    "model",
    [
        model_of(GELU + INNER, half=0.25),
        model_of(GELU + "product = Mul (half, grown)\ny = Mul (grown, product)\n"),
        model_of(GELU + "product = Mul (half, scaled)\ny = Mul (x, product)\n"),
        model_of(
            GELU + "product = Mul (half, grown)\nz = Mul (x, product)\ny = Add (z, product)\n"
        ),
    ],
)
def test_what_is_no_gelu_is_left_alone(model: onnx.ModelProto) -> None:
    assert reordered(model)[1] == 0
    (y,) = run_in_ort(model, {"x": normal((2, 8))})
    assert np.isfinite(y).all()
