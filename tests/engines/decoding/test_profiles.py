"""The two profiles of a decoding plan: asked for by themselves, and fused in both."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.decoding.by_hand import Kind
from tests.validate.mutants.subjects import SUBJECTS, exported

from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.decoding.profiles import with_decoding_profiles
from attnport.export.bundle import Bundle
from attnport.validate.finding import Obstacle, Subject
from attnport.validate.fusion import check_fusion

KINDS: tuple[Kind, ...] = ("concat", "static")


@pytest.mark.parametrize("kind", KINDS)
def test_caches_ask_for_two(bundles: dict[Kind, Bundle], kind: Kind) -> None:
    options = with_decoding_profiles(bundles[kind], BuildOptions())
    assert options.profiles == ({}, {"seq": (1, 1, 1)})


def test_what_was_asked_for_stays(bundles: dict[Kind, Bundle]) -> None:
    asked = BuildOptions(profiles=({"seq": (1, 2, 4)},))
    assert with_decoding_profiles(bundles["concat"], asked) is asked


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 4, 8)])
def test_range_of_one_or_without_one_has_no_second(
    bundles: dict[Kind, Bundle], sizes: tuple[int, int, int]
) -> None:
    bundle = bundles["concat"]
    manifest = bundle.manifest.model_copy(update={"axes": {**bundle.manifest.axes, "seq": sizes}})
    assert with_decoding_profiles(Bundle(bundle.path, manifest), BuildOptions()).profiles == ()


def test_without_caches_nothing_changes(bundles: dict[Kind, Bundle]) -> None:
    bundle = bundles["concat"]
    plain = Bundle(bundle.path, bundle.manifest.model_copy(update={"caches": ()}))
    assert with_decoding_profiles(plain, BuildOptions()) == BuildOptions()


@pytest.mark.parametrize("name", ["decoder", "decoder-static"])
def test_both_profiles_are_fused_with_a_kernel_of_their_own(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
    bundle = exported(SUBJECTS[name], "float16", tmp_path, max_cases=1)
    plan = build_engine(bundle, "tensorrt-rtx")
    assert plan.fusion is not None
    assert len(plan.fusion.kernel_counts) == 2
    kernels = {(a.attention, a.profile): a.kernel or "" for a in plan.fusion.attentions}
    assert len(kernels) == 2 * len(bundle.manifest.attentions)
    for (_, profile), kernel in kernels.items():
        assert kernel.startswith(("_gemm_mha", "_gemv_mha")[profile]), kernels
    found = check_fusion(
        Subject.of(bundle, "tensorrt-rtx"), bundle.manifest.attentions, plan.fusion,
        required=True, absent=Obstacle("not run", ""),
    )  # fmt: skip
    assert {finding.status for finding in found} == {"passed"}
    assert build_engine(bundle, "tensorrt-rtx").cached
