"""Files with the Attention operator that TensorRT refuses or misreads, after `attnport fuse`.

Their numbers are compared in tests/export; here is what became of them in TensorRT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.zoo.stock import StockError, build_layers
from onnx import TensorProto, helper

from attnport.engines.trt_request import ShapeRange
from attnport.export.fuse import fuse_file

H, DH = 2, 16
_NEW = ("b", H, "n", DH)
_PAST = ("b", H, "p", DH)
_SIZES = {"b": (1, 2, 3), "n": (1, 6, 14), "t": (1, 9, 20), "p": (1, 7, 16)}
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class OperatorFile:
    """One node, with inputs in its order; "" stands for one that is left out."""

    inputs: Mapping[str, Shape]
    order: tuple[str, ...]
    outputs: Mapping[str, Shape]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 23

    def model(self, element: int) -> onnx.ModelProto:
        def info(name: str, shape: Shape) -> onnx.ValueInfoProto:
            kind = TensorProto.INT64 if name == "lengths" else element
            return helper.make_tensor_value_info(name, kind, shape)

        node = helper.make_node(
            "Attention", list(self.order), list(self.outputs), name="attention", **self.attributes
        )
        graph = helper.make_graph(
            [node],
            "operator",
            [info(*pair) for pair in self.inputs.items()],
            [info(*pair) for pair in self.outputs.items()],
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=11)

    def profile(self) -> dict[str, ShapeRange]:
        def at(shape: Shape, which: int) -> tuple[int, ...]:
            return tuple(_SIZES[d][which] if isinstance(d, str) else d for d in shape)

        return {
            name: ShapeRange(min=at(shape, 0), opt=at(shape, 1), max=at(shape, 2))
            for name, shape in self.inputs.items()
        }


_QKV = {"q": _NEW, "k": _NEW, "v": _NEW}
_CACHED = _QKV | {"past_k": _PAST, "past_v": _PAST}
_CACHED_ORDER = ("q", "k", "v", "", "past_k", "past_v")
_LONGER: dict[str, Shape] = {"y": _NEW, "k_all": ("b", H, "s", DH), "v_all": ("b", H, "s", DH)}
_KEYS: Shape = ("b", H, "t", DH)

FILES = {
    "past-causal": OperatorFile(_CACHED, _CACHED_ORDER, _LONGER, {"is_causal": 1}),
    "past": OperatorFile(_CACHED, _CACHED_ORDER, _LONGER),
    "present-alone": OperatorFile(
        _QKV,
        ("q", "k", "v"),
        {"y": _NEW, "k_all": _NEW, "v_all": _NEW},
        {"is_causal": 1},
    ),
    "causal-fewer-queries": OperatorFile(
        {"q": _NEW, "k": _KEYS, "v": _KEYS}, ("q", "k", "v"), {"y": _NEW}, {"is_causal": 1}
    ),
    "three-axes": OperatorFile(
        {"q": ("b", "n", 4 * DH), "k": ("b", "n", 2 * DH), "v": ("b", "n", 2 * DH)},
        ("q", "k", "v"),
        {"y": ("b", "n", 4 * DH)},
        {"q_num_heads": 4, "kv_num_heads": 2},
    ),
    "key-lengths": OperatorFile(
        {"q": _NEW, "k": _KEYS, "v": _KEYS, "lengths": ("b",)},
        ("q", "k", "v", "", "", "", "lengths"),
        {"y": _NEW},
        {"is_causal": 1},
        opset=24,
    ),
}
# TensorRT for RTX 1.7.1 refuses these as they are, fp16 or not.
REFUSED = ("past-causal", "past", "present-alone")
ELEMENTS = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}


def _asked(name: str, dtype: str) -> object:
    marks = () if (name, dtype) == ("past-causal", "float16") else (pytest.mark.wide,)
    return pytest.param(name, dtype, id=f"{name}-{dtype}", marks=marks)


@pytest.mark.parametrize(("name", "dtype"), [_asked(n, d) for n in FILES for d in ELEMENTS])
def test_tensorrt_builds_what_fuse_wrote(name: str, dtype: str, tmp_path: Path) -> None:
    file = FILES[name]
    onnx.save(file.model(ELEMENTS[dtype]), tmp_path / "in.onnx")
    fused = fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert fused.complete, fused.outcomes
    layers = build_layers(tmp_path / "out.onnx", file.profile(), tmp_path)
    kernels = [layer.name for layer in layers if layer.is_kernel]
    # In fp32 no kernel of TensorRT fuses attention.
    assert any(name.startswith("_gemm_mha") for name in kernels) == (dtype == "float16")


@pytest.mark.wide
@pytest.mark.parametrize("name", REFUSED)
def test_tensorrt_refuses_it_as_it_was(name: str, tmp_path: Path) -> None:
    """Where this fails, TensorRT has learnt it, and the rewriting can be thought over."""
    onnx.save(FILES[name].model(TensorProto.FLOAT16), tmp_path / "in.onnx")
    with pytest.raises(StockError, match="one output"):
        build_layers(tmp_path / "in.onnx", FILES[name].profile(), tmp_path)
