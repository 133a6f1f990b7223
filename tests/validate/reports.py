"""Reports made by hand, for tests of what is drawn from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attnport.validate.finding import Finding
from attnport.validate.report import Machine, Measurement, Report

MACHINE = Machine(
    platform="Linux", cpu="AMD EPYC", cores=2, memory_bytes=8 << 30, gpus=(), python="3.12.4",
    versions={"torch": "2.13.0"},
)  # fmt: skip


def finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "model": "mha", "bundle": "ab" * 32, "dtype": "float32", "engine": "ort-cpu",
        "check": "parity", "case": "opt", "required": True, "status": "passed",
        "numbers": {
            "ratio": 0.3, "sizes": "batch=2 seq=7", "mask": "causal", "magnitude": "normal",
        },
        "message": "largest error 1e-06",
    }  # fmt: skip
    return Finding(**fields | changes)


def latency(low: float, value: float, high: float, **changes: Any) -> Measurement:
    fields: dict[str, Any] = {
        "kind": "latency", "model": "mha", "bundle": "ab" * 32, "dtype": "float32",
        "engine": "ort-cpu", "case": "opt",
        "values": {
            "median_us": 100 * value, "p10_us": 90 * value, "p90_us": 110 * value,
            "p99_us": 120 * value, "samples": 99, "threads": 2,
            "ratio": value, "ratio_low": low, "ratio_high": high, "reference": "torch-sdpa",
        },
    }  # fmt: skip
    return Measurement(**fields | changes)


def report(findings: Iterable[Finding] = (), measurements: Iterable[Measurement] = ()) -> Report:
    return Report(
        created="2026-11-30T12:00:00+00:00", machine=MACHINE, findings=tuple(findings),
        measurements=tuple(measurements),
    )  # fmt: skip
