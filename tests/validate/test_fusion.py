"""Fusion, causality and kernels from a plan; QKV from the graph first, then from the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from tests.validate.small_bundle import inspection

from attnport.engines.plan import AttentionFusion, Causal, FusionReport, ProjectionFusion
from attnport.export.bundle import Bundle
from attnport.export.records import AttentionInfo, Inspection
from attnport.validate.finding import Obstacle, Subject
from attnport.validate.fusion import can_fuse, check_causal, check_fusion, check_kernels
from attnport.validate.qkv import check_qkv_in_graph, check_qkv_in_plan

KERNEL = "_gemm_mha_v2_0x1"
(ATTENTION,) = inspection().attentions


def subject(dtype: str = "float16", engine: str = "tensorrt-rtx") -> Subject:
    return Subject("small", "hash", dtype, engine)


def plan(
    *, fused: bool = True, causal: Causal = "bounded", one_gemm: bool = True, profiles: int = 1
) -> FusionReport:
    rows = [
        AttentionFusion(
            attention="attn0",
            fused=fused,
            kernel=KERNEL if fused else None,
            causal=causal,
            nodes=("scores", "softmax"),
            profile=profile,
            reason="" if fused else "its head size is 8",
        )
        for profile in range(profiles)
    ]
    group = ProjectionFusion(
        group="attn0/qkv",
        merged_in_graph=True,
        one_gemm=one_gemm,
        layer="fc" if one_gemm else None,
        reason="" if one_gemm else "three layers",
    )
    return FusionReport(
        attentions=tuple(rows), projection_groups=(group,), kernel_count=5, layers=()
    )


def test_fused_names_the_kernel() -> None:
    (found,) = check_fusion(subject(), [ATTENTION], plan(), required=True)
    assert (found.status, found.case, found.required) == ("passed", "attn0", True)
    assert found.numbers["kernel"] == KERNEL


def test_every_profile_must_fuse() -> None:
    found = list(check_fusion(subject(), [ATTENTION], plan(profiles=2), required=True))
    assert [f.case for f in found] == ["attn0/profile0", "attn0/profile1"]


@pytest.mark.parametrize(
    ("dtype", "required", "status"),
    [
        ("float16", True, "failed"),
        ("float16", False, "failed"),
        ("float32", True, "failed"),
        ("float32", False, "not run"),
    ],
)
def test_not_fused(dtype: str, required: bool, status: str) -> None:
    assert can_fuse("tensorrt-rtx", dtype) == (dtype == "float16")
    (found,) = check_fusion(subject(dtype), [ATTENTION], plan(fused=False), required=required)
    assert (found.status, found.required) == (status, required)
    assert "its head size is 8" in found.message


@pytest.mark.parametrize("engine", ["ort-cpu", "torch-eager"])
def test_kinds_without_attention_kernels_are_not_applicable(engine: str) -> None:
    (found,) = check_fusion(subject(engine=engine), [ATTENTION], None, required=True)
    assert (found.status, found.required) == ("not run", False)
    assert "not applicable" in found.message
    assert not list(check_causal(subject(engine=engine), [ATTENTION], None, required=True))


@pytest.mark.parametrize("status", ["not run", "failed"])
def test_without_a_plan_the_obstacle_is_said(status: Literal["not run", "failed"]) -> None:
    absent = Obstacle(status, "the builder is missing")
    (found,) = check_fusion(subject(), [ATTENTION], None, required=True, absent=absent)
    assert (found.status, found.required) == (status, True)
    (found,) = check_causal(subject(), [ATTENTION], None, required=True, absent=absent)
    assert (found.status, found.required) == (status, True)
    assert check_kernels(subject(), None, 5, absent=absent).status == status


def test_an_attention_that_the_plan_does_not_tell_of_is_not_proved() -> None:
    other = ATTENTION.model_copy(update={"name": "attn1"})
    found = list(check_fusion(subject(), [ATTENTION, other], plan(), required=True))
    assert [(f.status, f.required) for f in found] == [("passed", True), ("not run", True)]


def test_a_graph_without_attention_is_not_proved() -> None:
    (found,) = check_fusion(subject(), [], plan(), required=True)
    assert (found.status, found.required) == ("not run", True)


def changed(mask: Literal["none", "bool"] = "none", causal: bool = True) -> AttentionInfo:
    return ATTENTION.model_copy(update={"mask": mask, "causal": causal})


@pytest.mark.parametrize(
    ("attention", "fusion", "status", "required"),
    [
        (changed(), plan(), "passed", True),
        (changed(), plan(causal="masked"), "failed", True),
        (changed(), plan(causal="none"), "failed", True),
        (changed(), plan(fused=False, causal="masked"), "not run", True),
        (changed("bool"), plan(), "passed", False),
        (changed("bool"), plan(causal="masked"), "not run", False),
    ],
)
def test_causal(
    attention: AttentionInfo, fusion: FusionReport, status: str, required: bool
) -> None:
    (found,) = check_causal(subject(), [attention], fusion, required=True)
    assert (found.status, found.required) == (status, required)


def test_what_is_not_causal_has_no_causal_finding() -> None:
    assert not list(check_causal(subject(), [changed(causal=False)], plan(), required=True))


@pytest.mark.parametrize(("maximum", "status"), [(5, "passed"), (4, "failed")])
def test_kernels(maximum: int, status: str) -> None:
    found = check_kernels(subject(), plan(), maximum)
    assert (found.status, found.required) == (status, True)
    assert found.numbers == {"kernels": 5, "maximum": maximum}


def test_merged_projections_pass(bundle: Bundle) -> None:
    (found,) = check_qkv_in_graph(bundle, inspection(), required=True)
    assert (found.engine, found.status, found.required) == ("onnx", "passed", True)
    (found,) = check_qkv_in_plan(subject(), inspection(), plan(), required=True)
    assert found.status == "passed"
    assert found.numbers["one_gemm"] is True


def test_a_pass_that_does_nothing_fails_although_the_plan_has_one_gemm(bundle: Bundle) -> None:
    undone = inspection(merged=False)
    (found,) = check_qkv_in_graph(bundle, undone, required=True)
    assert (found.status, found.required) == ("failed", True)
    (found,) = check_qkv_in_plan(subject(), undone, plan(), required=True)
    assert found.status == "failed"
    assert "the builder's own doing" in found.message


def test_merged_but_several_gemms_fails() -> None:
    (found,) = check_qkv_in_plan(subject(), inspection(), plan(one_gemm=False), required=True)
    assert found.status == "failed"
    assert "three layers" in found.message


def test_a_group_that_the_plan_does_not_tell_of_is_not_proved() -> None:
    silent = plan().model_copy(update={"projection_groups": ()})
    (found,) = check_qkv_in_plan(subject(), inspection(), silent, required=True)
    assert (found.status, found.required) == ("not run", True)


def test_a_claim_that_the_graph_does_not_hold_fails(bundle: Bundle) -> None:
    empty = Inspection(attentions=(), projection_groups=())
    (found,) = check_qkv_in_graph(bundle, empty, required=True)
    assert (found.status, found.required) == ("failed", True)


def test_without_groups_nothing_is_claimed(bundle: Bundle) -> None:
    empty = Inspection(attentions=(), projection_groups=())
    manifest = bundle.manifest.model_copy(update={"projection_groups": ()})
    (found,) = check_qkv_in_graph(replace(bundle, manifest=manifest), empty, required=True)
    assert (found.status, found.required) == ("not run", False)
