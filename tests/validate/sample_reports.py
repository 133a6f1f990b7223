"""Reports as they come out of a run, made up: what pages and plots are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnport.validate.finding import Finding, Number
from attnport.validate.report import Machine, Measurement, Report

MACHINE = Machine(
    platform="Linux-6.1-x86_64",
    cpu="AMD EPYC 9004",
    cores=2,
    memory_bytes=8 << 30,
    gpus=(),
    python="3.12.4",
    versions={"torch": "2.13.0", "onnxruntime": "1.32.0", "tensorrt-rtx-cu13": "1.7.1.116"},
)
MODELS = (
    "multi-head-512-8",
    "masked-512-8",
    "cross-attention-512-8",
    "encoder-block",
    "decoder-block",
)
CASES = (
    "batch1-seq1",
    "opt",
    "max",
    "between-key_padding",
    "opt-causal",
    "dead-row",
    "large-logits",
)
KERNEL = "_gemm_mha_v2_f16_128x64x64_causal_0x5f2a"


def finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "model": "mha",
        "bundle": "ab" * 32,
        "dtype": "float32",
        "engine": "ort-cpu",
        "check": "parity",
        "case": "opt",
        "required": True,
        "status": "passed",
        "numbers": {"ratio": 0.3, "error_max": 1e-6, "bound_max": 3e-6},
        "message": "largest error 1e-06, 0.3 of the bound",
    }
    return Finding(**fields | changes)


def report(*findings: Finding, measurements: tuple[Measurement, ...] = ()) -> Report:
    return Report(
        created="2026-11-30T01:31:00Z",
        machine=MACHINE,
        findings=findings,
        measurements=measurements,
    )


def parity(model: str, dtype: str, draw: np.random.Generator) -> list[Finding]:
    found = []
    for case in CASES:
        for engine in ("torch-sdpa", "ort-cpu"):
            ratio = float(draw.lognormal(-1.4, 0.5)) * (0.5 if engine == "torch-sdpa" else 1)
            ratio = min(ratio, 0.9)
            idle = case == "large-logits" and dtype == "float16"
            found.append(
                finding(
                    model=model,
                    dtype=dtype,
                    engine=engine,
                    case=case,
                    required=engine == "ort-cpu" and not idle,
                    status="not run" if idle else "passed",
                    numbers={"ratio": ratio, "error_max": ratio * 1e-4, "bound_max": 1e-4},
                    message="uninformative: the bound exceeds 10% of the output's RMS" if idle
                    else f"largest error {ratio * 1e-4:.3g}, {ratio:.2g} of the bound",
                )
            )  # fmt: skip
    no_gpu = "no CUDA device: run it on a machine that has one"
    found.append(
        finding(
            model=model,
            dtype=dtype,
            engine="tensorrt-rtx",
            case="coverage",
            required=False,
            status="not run",
            numbers={},
            message=no_gpu,
        )
    )
    return found


def plan(model: str, dtype: str) -> list[Finding]:
    half = dtype == "float16"
    causal = "bounded" if "masked" in model or "decoder" in model else "none"
    message = (
        f"fused into {KERNEL}" if half else "not fused: no fused attention kernel for float32"
    )
    common: dict[str, Any] = {"model": model, "dtype": dtype}
    return [
        finding(**common, engine="onnx", check="qkv", case="attn0/qkv", numbers={"merged": True},
                message="merged: one matrix holds QKV"),
        finding(**common, engine="tensorrt-rtx", check="fusion", case="attn0", required=half,
                status="passed" if half else "not run", message=message,
                numbers={"kernel": KERNEL if half else None, "causal": causal}),
    ]  # fmt: skip


def latencies(model: str, scale: float) -> list[Measurement]:
    def one(engine: str, median: float, note: str, **more: Number) -> Measurement:
        values: dict[str, Number] = {
            "median_us": median, "p10_us": median * 0.94, "p90_us": median * 1.15,
            "p99_us": median * 1.4, "samples": 210, "threads": 2,
        }  # fmt: skip
        return Measurement(
            kind="latency", model=model, bundle="ab" * 32, dtype="float32", engine=engine,
            case="opt", values=values | more, note=note,
        )  # fmt: skip

    return [
        one("torch-eager", 2100 * scale, "takes 1.75 times as long as torch-sdpa"),
        one("torch-sdpa", 1200 * scale, "the fastest torch form"),
        one("ort-cpu", 980 * scale, "1.22 times as fast as torch-sdpa", ratio=0.82),
        one("torch-eager", 2101 * scale, "A/A test: torch-eager entered twice came out at 1.001 "
            "(0.985 to 1.014): no difference", ratio=1.001, ratio_low=0.985, ratio_high=1.014),
        Measurement(kind="build", model=model, bundle="ab" * 32, dtype="float32",
                    engine="tensorrt-rtx", case="plan", values={"build_seconds": 3.2, "kernels": 5}),
    ]  # fmt: skip


def realistic(kind: str = "proved") -> Report:
    """Five models in two dtypes; `kind` names the verdict that it is to have."""
    draw = np.random.default_rng(7)
    found = [
        one
        for model in MODELS
        for dtype in ("float32", "float16")
        for one in (*parity(model, dtype, draw), *plan(model, dtype))
    ]
    measured = [one for i, model in enumerate(MODELS) for one in latencies(model, 1 + 2.5 * i)]
    if kind == "failed":
        found[3] = found[3].model_copy(
            update={
                "status": "failed",
                "numbers": {"ratio": 41.2, "error_max": 4.1e-3, "bound_max": 1e-4},
                "message": "error 0.00412 is 41.2 times the bound 0.0001; worst at "
                "output[0, 17, 301]: 0.4183, the float64 module gives 0.4142. The engine computes "
                "something else: compare scale, mask, head order and weights",
            }
        )
        found[27] = found[27].model_copy(
            update={
                "status": "failed",
                "required": True,
                "numbers": {"ratio": "NaN", "not_finite": 512},
                "message": "output[0, 3, 0] is nan, the float64 module gives 0: 512 elements are "
                "wrongly finite or not",
            }
        )
    if kind != "proved":
        found = [
            f.model_copy(update={"required": True}) if f.case == "coverage" else f for f in found
        ]
    return report(*found, measurements=tuple(measured))
