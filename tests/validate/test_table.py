from __future__ import annotations

import pytest

from attnport.validate.finding import Finding, Status, Subject
from attnport.validate.machine import this_machine
from attnport.validate.report import Measurement, Report
from attnport.validate.table import failures, summary_rows


def on(engine: str, dtype: str = "float16") -> Subject:
    return Subject("mha", "hash", dtype, engine)


def parity(engine: str, case: str, status: Status, ratio: float | None = 0.5) -> Finding:
    numbers = {} if ratio is None else {"ratio": ratio}
    message = "no CUDA device (no driver): use a GPU machine" if ratio is None else "words"
    return on(engine).finding("parity", case, status, message, required=True, numbers=numbers)


def fusion(check: str, status: Status, kernel: str | None) -> Finding:
    numbers = {"kernel": kernel, "causal": "bounded"}
    return Finding.model_validate(
        parity("tensorrt-rtx", "attn0", status).model_dump()
        | {"check": check, "numbers": numbers, "message": "not fused: head size 8: use 64"}
    )


def measured(kind: str, engine: str, values: dict[str, object], note: str = "") -> Measurement:
    keys = {"model": "mha", "bundle": "hash", "dtype": "float16", "case": "b1n1"}
    made = {**keys, "kind": kind, "engine": engine, "values": values, "note": note}
    return Measurement.model_validate(made)


def report(*findings: Finding, measurements: tuple[Measurement, ...] = ()) -> Report:
    return Report(created="", machine=this_machine(), findings=findings, measurements=measurements)


def test_a_row_at_a_glance() -> None:
    ratio = {"ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.625, "reference": "torch-sdpa"}
    eager = {"eager_ratio": 0.25, "eager_ratio_low": 0.2, "eager_ratio_high": 0.5}
    made = report(
        on("onnx").finding("qkv", "attn0/qkv", "passed", "merged", required=True),
        parity("ort-cpu", "b1n1", "passed", 0.25),
        parity("ort-cpu", "b2n7", "passed", 0.5),
        parity("ort-cpu", "big", "not run", 3.0),
        parity("ort-cpu", "coverage", "passed", None),
        parity("tensorrt-rtx", "coverage", "not run", None),
        fusion("fusion", "passed", "_gemm_mha"),
        fusion("causal", "passed", "_gemm_mha"),
        measurements=(
            measured("build", "tensorrt-rtx", {"kernels": 5}),
            measured("latency", "ort-cpu", {**ratio, **eager}),
            measured("latency", "ort-cpu", ratio, "A/A test: the same twice"),
            measured("latency", "tensorrt-rtx", {}, "not measured: it runs on a GPU"),
        ),
    )
    (row,) = summary_rows(made)
    assert row.parity == (
        "2/3 ort-cpu",
        "tensorrt-rtx not run: no CUDA device (no driver): use a GPU machine",
    )
    assert row.unproved == ("ort-cpu: 1 of 3 prove nothing: words (big)",)
    assert row.worst_ratio == 0.5
    assert row.qkv_merged == "1/1"
    assert row.fused_into == ("1/1 _gemm_mha",)
    assert row.causal == "bounded"
    assert row.kernels == {"tensorrt-rtx": 5}
    assert row.speed == (
        "ort-cpu 2.00x (1.60 to 2.50) of torch-sdpa, 4.00x (2.00 to 5.00) of torch-eager",
    )


def test_what_did_not_happen_is_never_shown_as_done() -> None:
    made = report(
        on("onnx").finding("qkv", "attn0/qkv", "failed", "not merged", required=True),
        parity("ort-cpu", "b1n1", "passed", 0.25),
        parity("ort-cpu", "b2n7", "failed", float("nan")),
        fusion("fusion", "failed", None),
        fusion("causal", "not run", None),
    )
    (row,) = summary_rows(made)
    assert row.parity == ("1/2 ort-cpu",)
    assert row.worst_ratio is None
    assert row.qkv_merged == "0/1"
    assert row.fused_into == ("0/1 tensorrt-rtx: head size 8",)
    assert row.causal == "-"
    assert row.speed == ()


def test_one_row_for_each_model_and_dtype() -> None:
    findings = [
        on("onnx", dtype).finding("qkv", "g", "passed", "merged", required=True)
        for dtype in ("float32", "float16", "float32")
    ]
    assert [row.dtype for row in summary_rows(report(*findings))] == ["float32", "float16"]


@pytest.mark.parametrize("required", [True, False])
def test_failures_are_what_the_verdict_hangs_on(required: bool) -> None:
    subject = on("ort-cpu")
    findings = [
        subject.finding("parity", "a", "not run", "lacks a GPU", required=required),
        subject.finding("parity", "b", "failed", "wrong", required=required),
        subject.finding("parity", "c", "passed", "fine", required=required),
    ]
    said = failures(report(*findings))
    assert len(said) == (2 if required else 0)
    if required:
        assert said[0] == "failed: mha float16, parity of b on ort-cpu: wrong"
