"""Real builds with TensorRT for RTX, which need no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport.engines.build import build_engine
from attnport.engines.plan import AttentionFusion, EnginePlan
from attnport.errors import BuildError, GraphError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
BundleMaker = Callable[..., Bundle]
RTX = "tensorrt-rtx"


def fusion_of(bundle: Bundle) -> AttentionFusion:
    plan = build_engine(bundle, RTX)
    assert plan.fusion is not None
    (attention,) = plan.fusion.attentions
    return attention


def left_behind(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"model.onnx", "bundle.json"}


def test_pure_causal_half_precision_is_one_bounded_kernel(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(causal="add")
    seen: list[tuple[str, float]] = []
    plan = build_engine(bundle, RTX, progress=lambda phase, done: seen.append((phase, done)))

    assert plan.fusion is not None
    (attention,) = plan.fusion.attentions
    assert attention.fused
    assert attention.kernel is not None
    assert attention.kernel.startswith("_gemm_mha_v2_0x")
    assert attention.causal == "bounded"
    assert {"/attn0/scores", "/attn0/softmax", "/attn0/context"} <= set(attention.nodes)
    (group,) = plan.fusion.projection_groups
    assert (group.merged_in_graph, group.one_gemm, group.reason) == (True, True, "")
    # The specification's floor for one attention (facts of TensorRT for RTX 1.7.1).
    assert plan.fusion.kernel_count <= 5
    assert seen[-1] == ("done", 1.0)
    assert [done for _, done in seen] == sorted(done for _, done in seen)


def test_the_plan_says_where_it_came_from(attention_bundle: BundleMaker, tmp_path: Path) -> None:
    bundle = attention_bundle()
    plan = build_engine(bundle, RTX, out=tmp_path / "plans")

    assert (plan.kind, plan.model, plan.bundle_hash) == (RTX, "tiny", bundle.hash)
    assert plan.versions["tensorrt_rtx"]
    assert plan.peak_memory_bytes is None or plan.peak_memory_bytes > 2**20
    assert plan.build_seconds > 0
    names = {
        "model.tensorrt-rtx.plan",
        "model.tensorrt-rtx.plan.json",
        "model.tensorrt-rtx.plan.log",
    }
    assert left_behind(tmp_path / "plans") == names
    assert left_behind(bundle.path) == set()
    assert plan.log_path is not None
    assert "Parsing node: /attn0/scores" in plan.log_path.read_text("utf-8")


def test_causality_by_where_is_masked_and_not_bounded(attention_bundle: BundleMaker) -> None:
    attention = fusion_of(attention_bundle(causal="where"))
    assert (attention.fused, attention.causal) == (True, "masked")


def test_bool_mask_is_fused(attention_bundle: BundleMaker) -> None:
    attention = fusion_of(attention_bundle(mask=True))
    assert (attention.fused, attention.causal) == (True, "none")


def test_bfloat16_is_fused(attention_bundle: BundleMaker) -> None:
    assert fusion_of(attention_bundle(dtype="bfloat16")).fused


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, "no fused attention kernel for float32"),
        ({"width": 16, "heads": 2}, "head size is 8"),
        ({"width": 512, "heads": 1}, "head size is 512"),
        ({"width": 64, "heads": 1, "batch": 1, "seq": 16}, "batch times heads is a constant 1"),
    ],
)
def test_what_has_no_fused_kernel_is_built_and_says_why(
    attention_bundle: BundleMaker, options: dict[str, object], reason: str
) -> None:
    attention = fusion_of(attention_bundle(causal="add", **options))
    assert not attention.fused
    assert attention.kernel is None
    assert attention.causal == "masked"
    assert reason in attention.reason
    assert "it runs as" in attention.reason


def test_softmax_weights_that_are_returned_prevent_fusion(attention_bundle: BundleMaker) -> None:
    weights = TensorSpec(name="softmax", dtype="float16", shape=("batch", 2, "seq", "seq"))
    attention = fusion_of(attention_bundle(extra_outputs=(weights,)))
    assert not attention.fused
    assert "softmax weights are an output" in attention.reason


def test_tensorrt_merges_projections_that_the_graph_does_not(
    attention_bundle: BundleMaker,
) -> None:
    plan = build_engine(attention_bundle(merged=False), RTX)
    assert plan.fusion is not None
    (group,) = plan.fusion.projection_groups
    assert (group.merged_in_graph, group.one_gemm) == (False, True)
    assert group.reason == "there are three matrices"


@pytest.mark.parametrize(("dtype", "fused"), [("float16", True), ("float32", False)])
def test_the_attention_operator_is_built_in_every_dtype(
    attention_bundle: BundleMaker, dtype: str, fused: bool
) -> None:
    attention = fusion_of(attention_bundle(operator=True, causal="add", dtype=dtype))
    assert attention.fused is fused
    assert attention.causal == ("bounded" if fused else "masked")


def test_death_by_signal_is_an_error_that_names_model_and_signal(
    attention_bundle: BundleMaker,
) -> None:
    bundle = attention_bundle(causal="where", mask=True)  # two Where in a row
    with pytest.raises(BuildError, match=r"died of SIGSEGV while building 'tiny'") as caught:
        build_engine(bundle, RTX)
    assert "The builder's last messages" in caught.value.__notes__[0]
    assert left_behind(bundle.path) == set()


def test_parser_error_names_the_node(attention_bundle: BundleMaker) -> None:
    bundle = with_node_replaced(attention_bundle(), "Softmax", "NoSuchOperator")
    with pytest.raises(BuildError, match=r"'/attn0/softmax' \(NoSuchOperator\)"):
        build_engine(bundle, RTX)
    assert left_behind(bundle.path) == set()


@pytest.mark.parametrize("size", [0, 2, 1000])
def test_a_truncated_file_is_not_given_to_tensorrt(
    attention_bundle: BundleMaker, size: int
) -> None:
    bundle = attention_bundle()
    bundle.model_path.write_bytes(bundle.model_path.read_bytes()[:size])
    with pytest.raises(GraphError, match=r"model\.onnx .*: export again"):
        build_engine(bundle, RTX)
    assert left_behind(bundle.path) == set()


def test_an_axis_without_range_is_refused_before_the_build(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    manifest = bundle.manifest.model_copy(update={"axes": {"batch": (1, 1, 1)}})
    with pytest.raises(BuildError, match=r"axis 'seq'.*axes with a range: batch"):
        build_engine(Bundle(bundle.path, manifest), RTX)


def test_a_build_that_would_not_fit_is_said_before(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnport.engines.memory._BYTES_PER_WEIGHT_BYTE", 10**12)
    seen: list[str] = []
    plan = build_engine(attention_bundle(), RTX, progress=lambda phase, _: seen.append(phase))
    (warning,) = plan.warnings
    assert "GiB are free" in warning
    assert seen[0] == warning


def test_an_interrupted_build_leaves_nothing(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()

    def interrupt(phase: str, fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(bundle, RTX, progress=interrupt)
    assert left_behind(bundle.path) == set()


def test_a_killed_build_leaves_nothing(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    # Kills itself at the first progress of its builder.
    code = (
        "import os, signal, sys\n"
        "from attnport.engines.build import build_engine\n"
        "from attnport.export.bundle import Bundle\n"
        "kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"build_engine(Bundle.load(sys.argv[1]), {RTX!r}, progress=kill)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, os.fspath(bundle.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while left_behind(bundle.path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_behind(bundle.path) == set()


def test_external_weights_are_found(attention_bundle: BundleMaker) -> None:
    import onnx

    bundle = attention_bundle()
    model = onnx.load(bundle.model_path)
    onnx.save(model, bundle.model_path, save_as_external_data=True, location="model.onnx.data")
    assert fusion_of(bundle).fused
    assert "model.onnx.data" in left_behind(bundle.path)


def test_building_again_gives_the_same_plan(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    plans: list[EnginePlan] = [build_engine(bundle, RTX) for _ in range(2)]
    assert plans[0].plan_sha256 == plans[1].plan_sha256


def with_node_replaced(bundle: Bundle, operator: str, by: str) -> Bundle:
    import onnx

    model = onnx.load(bundle.model_path)
    for node in model.graph.node:
        if node.op_type == operator:
            node.op_type = by
    onnx.save(model, bundle.model_path)
    return bundle
