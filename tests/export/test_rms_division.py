"""RMS norms as ONNX Runtime fuses them, and products with other reciprocals."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import to_ir

from attnport.export.rms_division import divide_by_roots

ROOT = """
squared = Pow (x, two)
mean = ReduceMean <keepdims = 1> (squared, last)
kept = Add (mean, small)
root = Sqrt (kept)
inverse = Reciprocal (root)
"""
END = "normed = Mul (x, inverse)\ny = Mul (weight, normed)\n"


def model_of(body: str) -> onnx.ModelProto:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        "norm (float[n,m,8] x, float[n,m,8] z) => (float[n,m,8] y) "
        f"<float two = {{2.0}}, float small = {{1e-6}}, int64[1] last = {{-1}}> {{{body}}}"
    )
    weight = onnx.numpy_helper.from_array(normal((8,)), "weight")
    model.graph.initializer.append(weight)
    return model


def divided(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    found = to_ir(model)
    changed = divide_by_roots(found.graph).changed
    lowered = ir.serde.serialize_model(found)
    onnx.checker.check_model(lowered, full_check=True)
    return lowered, changed


@pytest.mark.parametrize("end", [END, "normed = Mul (inverse, x)\ny = Mul (normed, weight)\n"])
def test_the_numbers_stay(end: str) -> None:
    model = model_of(ROOT + end)
    lowered, changed = divided(model)
    assert changed == 1
    feeds = [{"x": normal((2, n, 8)), "z": normal((2, n, 8))} for n in (1, 5)]
    assert_same_numbers(model, lowered, feeds)
    assert divided(lowered)[1] == 0


def test_onnx_runtime_makes_one_kernel_of_it(tmp_path: Path) -> None:
    """Where the first fails, ONNX Runtime has learnt torch's order: this lowering can go."""
    model = model_of(ROOT + END)
    assert "SimplifiedLayerNormalization" not in kernels(model, tmp_path)
    assert kernels(divided(model)[0], tmp_path) == ["SimplifiedLayerNormalization"]


def kernels(model: onnx.ModelProto, folder: Path) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


@pytest.mark.parametrize(
    "body",
    [
        ROOT + "normed = Mul (z, inverse)\ny = Mul (weight, normed)\n",
        ROOT + "normed = Mul (x, inverse)\ny = Mul (inverse, normed)\n",
        "inverse = Reciprocal (z)\nnormed = Mul (x, inverse)\ny = Mul (weight, normed)\n",
        "y = Mul (weight, x)\n",
    ],
)
def test_what_is_no_norm_is_left_alone(body: str) -> None:
    assert divided(model_of(body))[1] == 0
