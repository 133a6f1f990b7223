"""The whole room on a small bundle: real onnxruntime, and a real TensorRT for RTX builder."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from tests.validate.onnx_engine import OnnxEngine
from tests.validate.small_bundle import Fault, inspection, make_bundle, with_reference

from attnport.engines.plan import EnginePlan
from attnport.errors import BuildError, EngineUnavailableError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import AttentionInfo, Inspection, OutputErrors
from attnport.validate import prove_kind
from attnport.validate.finding import Finding
from attnport.validate.html_view import reasons, remarks
from attnport.validate.prove import prove
from attnport.validate.report import Report
from attnport.validate.requirements import Requirements
from attnport.validate.table import summary_rows

needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed"
)


def of(report: Report, check: str, engine: str) -> list[Finding]:
    return [f for f in report.findings if (f.check, f.engine) == (check, engine)]


def test_a_right_engine_is_proved(bundle: Bundle) -> None:
    heard: list[float] = []
    report = prove(
        bundle,
        ["ort-cpu"],
        inspection=inspection(),
        progress=lambda what, fraction: heard.append(fraction),
    )
    assert report.verdict == "proved"
    assert [f.case for f in of(report, "parity", "ort-cpu")] == [
        *(record.name for record in bundle.manifest.cases),
        "coverage",
    ]
    assert of(report, "engine", "ort-cpu")[0].status == "passed"
    assert heard == sorted(heard)
    assert 0 <= heard[0] <= heard[-1] <= 1


def test_without_the_module_torch_is_not_run_and_not_required(bundle: Bundle) -> None:
    report = prove(bundle, ["ort-cpu", "torch-eager"], inspection=inspection())
    (found,) = of(report, "parity", "torch-eager")
    assert (found.status, found.required) == ("not run", False)
    assert report.verdict == "proved"


def test_a_required_engine_that_cannot_run_here_is_not_proved(bundle: Bundle) -> None:
    require = Requirements(parity=("ort-cpu", "torch-eager"))
    report = prove(bundle, ["ort-cpu"], require=require, inspection=inspection())
    (found,) = of(report, "parity", "torch-eager")
    assert (found.status, found.required) == ("not run", True)
    assert (report.verdict, report.exit_code) == ("not proved", 3)


def test_where_no_engine_can_run_nothing_is_proved(bundle: Bundle) -> None:
    report = prove(bundle, ["torch-eager"], inspection=inspection())
    assert report.verdict == "not proved"
    (found,) = of(report, "parity", "onnx")
    assert (found.status, found.required) == ("not run", True)
    assert "none of the engines asked for runs on this machine (torch-eager: " in found.message
    (reason,) = reasons(report)
    assert reason.subject == "small float32 · parity"


def test_that_no_parity_is_required_can_be_said(bundle: Bundle) -> None:
    report = prove(bundle, [], require=Requirements(parity=()), inspection=inspection())
    assert report.verdict == "proved"


@pytest.mark.parametrize("fault", [Fault(scale=2.0), Fault(diagonal=1), Fault(heads=(1, 0))])
def test_a_wrong_engine_fails(
    bundle: Bundle, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove_kind, "open_engine", lambda *a, **k: OnnxEngine(bundle, fault))
    report = prove(bundle, ["ort-cpu"], inspection=inspection())
    assert (report.verdict, report.exit_code) == ("failed", 1)


def test_an_engine_without_an_informative_case_is_not_proved(bundle: Bundle) -> None:
    vague = bundle
    for record in bundle.manifest.cases:
        vague = with_reference(vague, record.name, eager=OutputErrors(max=1.0, mean=1.0))
    report = prove(vague, ["ort-cpu"], inspection=inspection())
    *cases, total = of(report, "parity", "ort-cpu")
    assert {(f.status, f.required) for f in cases} == {("not run", False)}
    assert (total.case, total.status, total.required) == ("coverage", "not run", True)
    assert report.verdict == "not proved"


def test_nothing_informative_at_the_smallest_size_is_not_proved(bundle: Bundle) -> None:
    vague = with_reference(bundle, "b1n1", eager=OutputErrors(max=1.0, mean=1.0))
    report = prove(vague, ["ort-cpu"], inspection=inspection())
    *cases, total = of(report, "parity", "ort-cpu")
    assert [f.status for f in cases] == ["not run", "passed", "passed"]
    assert (total.status, total.required) == ("not run", True)
    assert "at batch=1, seq=1" in total.message
    assert report.verdict == "not proved"


def test_a_graph_without_attention_is_proved_and_said(bundle: Bundle) -> None:
    report = prove(bundle, ["ort-cpu"], inspection=Inspection(attentions=(), projection_groups=()))
    (found,) = of(report, "fusion", "onnx")
    assert (found.status, found.required) == ("not run", False)
    assert "no attention was found" in remarks(report)[0]
    assert summary_rows(report)[0].fused_into == ("no attention found",)


def test_an_attention_that_no_pass_wrote_is_said(bundle: Bundle) -> None:
    (one,) = inspection().attentions
    left = one.model_copy(update={"recognised": False, "reason": "its scale is a product"})
    report = prove(bundle, ["ort-cpu"], inspection=replace_attention(left))
    (found,) = of(report, "fusion", "onnx")
    assert found.message == "left as it was written: its scale is a product"


def replace_attention(one: AttentionInfo) -> Inspection:
    return inspection().model_copy(update={"attentions": (one,)})


def test_fusion_in_onnx_runtime_on_a_device_is_asked_for_and_not_told(bundle: Bundle) -> None:
    report = prove(bundle, ["ort-cpu", "ort-cuda"], inspection=inspection())
    (found,) = of(report, "fusion", "ort-cuda")
    assert (found.case, found.status, found.required) == ("attn0", "not run", False)
    (found,) = of(report, "fusion", "ort-cpu")
    assert found.message.startswith("not applicable")


def test_a_bundle_without_cases_is_not_proved(bundle: Bundle) -> None:
    empty = replace(bundle, manifest=bundle.manifest.model_copy(update={"cases": ()}))
    assert prove(empty, ["ort-cpu"], inspection=inspection()).verdict == "not proved"


def test_a_pass_that_does_nothing_fails(bundle: Bundle) -> None:
    report = prove(bundle, ["ort-cpu"], inspection=inspection(merged=False))
    assert report.verdict == "failed"
    assert [f.check for f in report.findings if f.status == "failed"] == ["qkv"]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (BuildError("the builder died"), "failed"),
        (EngineUnavailableError("not installed"), "not proved"),
    ],
)
def test_an_engine_that_cannot_be_built(
    half_bundle: Bundle, error: Exception, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*args: object, **kwargs: object) -> EnginePlan:
        raise error

    monkeypatch.setattr(prove_kind, "build_engine", build)
    require = Requirements(parity=(), fusion=("tensorrt-rtx",), kernels={"tensorrt-rtx": 5})
    report = prove(half_bundle, [], require=require, inspection=inspection())
    said = [f for f in report.findings if f.engine == "tensorrt-rtx"]
    assert {f.check for f in said} == {"fusion", "causal", "kernels", "parity"}
    assert all(str(error) in f.message for f in said)
    assert report.verdict == verdict


def test_a_plan_of_another_bundle_is_refused(bundle: Bundle, half_bundle: Bundle) -> None:
    plan = EnginePlan(
        kind="ort-cpu",
        model="small",
        bundle_path=half_bundle.path,
        bundle_hash=half_bundle.hash,
        dtype="float16",
        path=None,
        versions={},
        build_seconds=0.0,
    )
    with pytest.raises(UsageError, match="another bundle"):
        prove(bundle, ["ort-cpu"], plans={"ort-cpu": plan}, inspection=inspection())


def test_an_unknown_engine_is_refused(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="ort-cpuu"):
        prove(bundle, ["ort-cpuu"], inspection=inspection())


@needs_rtx
def test_a_real_plan_fuses_and_bounds_the_attention(tmp_path: Path) -> None:
    half = make_bundle(tmp_path / "small", "float16")
    report = prove(half, ["ort-cpu", "tensorrt-rtx"], inspection=inspection())
    statuses = {
        check: [f.status for f in of(report, check, "tensorrt-rtx")]
        for check in ("fusion", "causal", "qkv")
    }
    assert statuses == {"fusion": ["passed"], "causal": ["passed"], "qkv": ["passed"]}
    (cost,) = (m for m in report.measurements if m.kind == "build")
    assert cost.engine == "tensorrt-rtx"
    assert isinstance(cost.values["kernels"], int)


@needs_rtx
def test_float32_is_shown_as_not_fused(tmp_path: Path) -> None:
    single = make_bundle(tmp_path / "small", "float32")
    report = prove(single, ["ort-cpu", "tensorrt-rtx"], inspection=inspection())
    (found,) = of(report, "fusion", "tensorrt-rtx")
    assert (found.status, found.required) == ("not run", False)
    assert "not fused" in found.message
    assert report.verdict == "proved"
