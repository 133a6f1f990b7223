"""The limits that expectations of the zoo name are TensorRT's own: the smallest graphs show them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks.zoo.catalogue import chosen
from benchmarks.zoo.limits import CONTROL, LIMITS, Limit
from benchmarks.zoo.stock import build_layers

from attnport.engines.trt_request import ShapeRange


def _is_fused(limit: Limit, folder: Path) -> bool:
    path = folder / "model.onnx"
    model = onnx.parser.parse_model(limit.text)
    onnx.save(model, path)
    layers = build_layers(path, {v.name: _range(v) for v in model.graph.input}, folder)
    return any(layer.name.startswith("_gemm_mha") for layer in layers)


def _range(value: onnx.ValueInfoProto) -> ShapeRange:
    dims = value.type.tensor_type.shape.dim
    sizes = ({"b": 1, "n": 1}, {"b": 2, "n": 16}, {"b": 3, "n": 23})
    low, usual, high = (
        tuple(at.get(dim.dim_param, dim.dim_value) for dim in dims) for at in sizes
    )
    return ShapeRange(min=low, opt=usual, max=high)


@pytest.mark.parametrize(
    "limit", LIMITS, ids=lambda limit: f"{limit.limit[:16]}-{limit.head_size}"
)
def test_no_kernel_takes_it(limit: Limit, tmp_path: Path) -> None:
    assert not _is_fused(limit, tmp_path)


def test_without_a_limit_it_is_one_kernel(tmp_path: Path) -> None:
    assert _is_fused(CONTROL, tmp_path)


def test_expectations_name_limits_that_are_shown() -> None:
    shown = {limit.limit for limit in LIMITS}
    assert {reason for entry in chosen(()) for reason in entry.unfusable} <= shown
