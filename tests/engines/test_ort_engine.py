"""ONNX Runtime on the CPU: what was asked for, or a refusal that says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from attnport.engines.build import build_engine
from attnport.engines.kinds import KINDS
from attnport.engines.open import open_engine
from attnport.engines.ort_engine import OrtEngine
from attnport.errors import (
    EngineUnavailableError,
    GraphError,
    InputError,
    UnsupportedDtypeError,
    UsageError,
)
from attnport.export.bundle import Bundle

pytest.importorskip("onnxruntime", reason="runs ONNX Runtime")
BundleMaker = Callable[..., Bundle]


def sample(seq: int = 5, width: int = 128, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((2, seq, width)).astype(dtype)}


def save(graph: GraphProto, bundle: Bundle) -> None:
    """Puts another graph in the place of the bundle's."""
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), bundle.model_path)


def test_it_computes_the_graph(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32", causal="add")
    feeds = sample()
    with open_engine(bundle, "ort-cpu", threads=1) as engine:
        (result,) = engine.run(feeds).values()
        assert [spec.name for spec in engine.outputs] == ["y"]
    (expected,) = ReferenceEvaluator(str(bundle.model_path)).run(None, feeds)
    # Both sum 128 products in fp32, in their own order, four products deep.
    bound = 4 * 128 * np.finfo(np.float32).eps * np.abs(expected).max()
    assert np.abs(result - expected).max() <= bound


def test_inputs_are_checked(attention_bundle: BundleMaker) -> None:
    with (
        open_engine(attention_bundle(dtype="float32"), "ort-cpu") as engine,
        pytest.raises(InputError, match="axis 'seq' takes 1 to 64"),
    ):
        engine.run(sample(seq=65))


def test_nan_comes_out_as_nan(attention_bundle: BundleMaker) -> None:
    feeds = sample()
    feeds["x"][0, 0, 0] = np.nan
    with open_engine(attention_bundle(dtype="float32"), "ort-cpu") as engine:
        result = engine.run(feeds)["y"]
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


def test_every_node_is_placed_on_the_provider_asked_for(attention_bundle: BundleMaker) -> None:
    with open_engine(attention_bundle(dtype="float32"), "ort-cpu") as engine:
        placement = engine.placement()
    assert list(placement) == ["CPUExecutionProvider"]
    assert placement["CPUExecutionProvider"] >= len(("qkv", "scores", "softmax", "context", "y"))


def test_a_closed_engine_says_so(attention_bundle: BundleMaker) -> None:
    engine = open_engine(attention_bundle(dtype="float32"), "ort-cpu")
    engine.close()
    assert engine.placement() == {}
    with pytest.raises(UsageError, match="was closed: open it again"):
        engine.run(sample())


def test_bfloat16_is_refused_by_the_operator(attention_bundle: BundleMaker) -> None:
    with pytest.raises(
        UnsupportedDtypeError, match=r"no kernel for \w+ \(node '.+'\) in bfloat16"
    ):
        open_engine(attention_bundle(dtype="bfloat16"), "ort-cpu")


def test_bfloat16_that_loads_and_cannot_be_fed_is_refused(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="bfloat16")
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [2]) for name in "xy")
    identity = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    save(identity, bundle)
    with pytest.raises(UnsupportedDtypeError, match="takes no bfloat16 arrays, and x, y would be"):
        open_engine(bundle, "ort-cpu")


@pytest.mark.parametrize("content", [b"not ONNX", b""])
def test_a_file_that_is_no_graph_is_refused(attention_bundle: BundleMaker, content: bytes) -> None:
    bundle = attention_bundle(dtype="float32")
    bundle.model_path.write_bytes(content)
    with pytest.raises(GraphError, match=r"model\.onnx .*ONNX"):
        open_engine(bundle, "ort-cpu")


def test_a_provider_that_was_replaced_is_refused(attention_bundle: BundleMaker) -> None:
    cuda = dataclasses.replace(KINDS["ort-cpu"], provider="CUDAExecutionProvider")
    bundle = attention_bundle(dtype="float32")
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(EngineUnavailableError, match="replaced CUDAExecutionProvider by CPU"),
    ):
        OrtEngine(bundle, cuda)


def test_half_precision_that_crashed_a_default_session(
    attention_bundle: BundleMaker,
) -> None:
    """ONNX Runtime 1.32 dies on Transpose -> MatMul(constant) in fp16 with its layout pass."""
    bundle = attention_bundle(dtype="float16")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["a", "b", 128]) for name in "xy"
    )
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["t", "w"], ["p"]),
        helper.make_node("Transpose", ["p"], ["y"], perm=[1, 0, 2]),
    ]
    weight = numpy_helper.from_array(np.eye(128, dtype=np.float16), "w")
    save(helper.make_graph(nodes, "g", [x], [y], [weight]), bundle)
    feeds = sample(dtype=np.float16)
    with open_engine(bundle, "ort-cpu") as engine:
        np.testing.assert_array_equal(engine.run(feeds)["y"], feeds["x"])


def test_building_loads_the_graph_once(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32")
    plan = build_engine(bundle, "ort-cpu")
    assert (plan.path, plan.fusion, plan.plan_sha256) == (bundle.model_path, None, None)
    with pytest.raises(UsageError, match="threads is 0: give 1 or more"):
        open_engine(bundle, "ort-cpu", threads=0)
