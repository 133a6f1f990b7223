"""Options are TensorRT's to take or to refuse, and its reason is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.devices import cuda_devices
from attnport.engines.trt_process import run_builder
from attnport.engines.trt_request import BuildRequest, ShapeRange
from attnport.errors import BuildError
from attnport.export.bundle import Bundle

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
BundleMaker = Callable[..., Bundle]
RTX = "tensorrt-rtx"
without_cuda = pytest.mark.skipif(bool(cuda_devices()), reason="what fails without a CUDA device")


def test_a_prefill_and_a_one_token_profile_in_one_engine(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(causal="add")
    options = BuildOptions(profiles=({"seq": (2, 32, 64)}, {"seq": (1, 1, 1)}))
    plan = build_engine(bundle, RTX, options=options)
    assert plan.fusion is not None
    prefill, decode = plan.fusion.attentions
    assert (prefill.profile, prefill.fused, prefill.causal) == (0, True, "bounded")
    # Without a past, one query sees one key.
    assert (decode.profile, decode.fused) == (1, False)
    assert "in this profile there is one query and one key" in decode.reason
    assert [group.profile for group in plan.fusion.projection_groups] == [0, 1]
    assert all(group.one_gemm for group in plan.fusion.projection_groups)
    assert len(plan.fusion.kernel_counts) == 2
    assert plan.fusion.kernel_counts[0] == plan.fusion.kernel_count <= 5
    assert plan.profiles == (
        {"batch": (1, 2, 4), "seq": (2, 32, 64)},
        {"batch": (1, 2, 4), "seq": (1, 1, 1)},
    )


def test_a_profile_of_one_head_in_one_batch(attention_bundle: BundleMaker) -> None:
    options = BuildOptions(profiles=({"batch": (1, 1, 1)},))
    plan = build_engine(attention_bundle(heads=1, width=64), RTX, options=options)
    assert plan.fusion is not None
    (attention,) = plan.fusion.attentions
    assert attention.fused or "batch times heads is 1" in attention.reason


@pytest.mark.parametrize("targets", [(75,), (80, 86, 89), (120, 121)])
def test_targets_are_built_and_fused(
    attention_bundle: BundleMaker, targets: tuple[int, ...]
) -> None:
    plan = build_engine(attention_bundle(), RTX, options=BuildOptions(targets=targets))
    assert plan.fusion is not None
    assert plan.fusion.attentions[0].fused
    assert plan.options.targets == targets


@pytest.mark.parametrize(
    ("targets", "dtype", "message"),
    [
        (
            (75, 89),
            "bfloat16",
            r"HW-specific datatypes: b16.*the type b16 does not exist on every",
        ),
        ((90,), "float16", r"no target for compute capability 9\.0; it has 75, 80, 86, 89, 120"),
    ],
)
def test_targets_that_do_not_fit(
    attention_bundle: BundleMaker, targets: tuple[int, ...], dtype: str, message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        build_engine(attention_bundle(dtype=dtype), RTX, options=BuildOptions(targets=targets))


@without_cuda
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refittable": True}, "--refittable was asked for, which .* only where there is a CUDA"),
        ({"weight_stripped": True}, "--weight-stripped was asked for"),
        ({"version_compatible": True}, "needs TensorRT's lean runtime, and this installation"),
        ({"workspace_bytes": 1024}, "workspace limit.* give more than 1024 bytes of workspace"),
        ({"timing_cache": Path("nowhere")}, "times no kernels while it builds"),
    ],
)
def test_options_that_tensorrt_refuses_here(
    attention_bundle: BundleMaker, options: dict[str, object], message: str
) -> None:
    bundle = attention_bundle()
    with pytest.raises(BuildError, match=message):
        build_engine(bundle, RTX, options=BuildOptions.checked(**options))
    assert {path.name for path in bundle.path.iterdir()} == {"model.onnx", "bundle.json"}


@pytest.mark.parametrize("level", [0, 5])
def test_every_optimization_level_is_taken(attention_bundle: BundleMaker, level: int) -> None:
    plan = build_engine(attention_bundle(), RTX, options=BuildOptions(optimization_level=level))
    assert plan.options.optimization_level == level


@pytest.mark.parametrize(
    ("ranges", "stage", "message"),
    [
        ({}, "build", "no optimization profile|missing dimensions"),
        ({"z": ((1, 1, 128), (1, 1, 128), (1, 1, 128))}, "build", "missing dimensions"),
        ({"x": ((4, 1, 128), (2, 1, 128), (1, 1, 128))}, "profile", "MIN<=OPT<=MAX"),
        ({"x": ((1, 1, 64), (1, 1, 64), (1, 1, 64))}, "build", "dimension|shape|128"),
    ],
)
def test_profiles_that_tensorrt_refuses(
    attention_bundle: BundleMaker,
    tmp_path: Path,
    ranges: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]],
    stage: str,
    message: str,
) -> None:
    """Past our own checks, which never let such a profile reach it."""
    profile = {name: ShapeRange(min=r[0], opt=r[1], max=r[2]) for name, r in ranges.items()}
    request = BuildRequest(
        library="tensorrt_rtx",
        model_path=attention_bundle().model_path,
        profiles=(profile,) if profile else (),
    )
    code, result = run_builder(request, tmp_path, lambda phase, fraction: None)
    assert code == 0
    assert result is not None
    assert result.failure is not None
    assert result.failure.stage == stage
    assert re.search(message, result.failure.message)
