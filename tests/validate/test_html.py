"""The HTML page: what it says, and that nothing in a report can break out of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.errors import UsageError
from attnport.validate.finding import Finding, Number
from attnport.validate.html import html_from_report, write_html
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


class Page(HTMLParser):
    """Checks that elements close in order, and gathers text, ids and addresses."""

    VOID = frozenset({"meta", "input", "br", "link", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src", "xlink:href", "action"}:
                self.addresses.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text += data


@pytest.fixture(scope="module")
def failed_page() -> str:
    return html_from_report(realistic("failed"))


def test_page_is_well_formed_and_asks_for_nothing_else(failed_page: str) -> None:
    page = Page(failed_page)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert all(address.startswith("#") for address in page.addresses)
    named = set(re.findall(r"https?://[^\"' )<]+", failed_page))
    assert named <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in failed_page
    assert page.tags.count("figure") == 2


@pytest.mark.parametrize(
    ("kind", "verdict", "said"),
    [
        ("proved", "PROVED", "Yes. All 80 requirements passed."),
        ("failed", "FAILED", "No. 2 of 91 requirements failed, and 10 could not be checked."),
        ("not proved", "NOT PROVED", "Not yet. Nothing failed, but 10 of 90"),
    ],
)
def test_verdict_stands_in_words(kind: str, verdict: str, said: str) -> None:
    page = Page(html_from_report(realistic(kind)))
    start = page.text[: page.text.index("By model and dtype")]
    assert f"\n{verdict}\n" in start
    assert said in start


def test_reasons_stand_before_the_table_failed_ones_first(failed_page: str) -> None:
    text = Page(failed_page).text
    start = text[: text.index("By model and dtype")]
    assert start.index("41.2 times the bound") < start.index("no CUDA device")
    assert "10 findings" in start


def test_nothing_required_is_not_known() -> None:
    assert "Not known. Nothing was required" in html_from_report(report(finding(required=False)))


def test_empty_report_is_a_page() -> None:
    assert "holds no findings" in Page(html_from_report(report())).text


def test_what_a_report_says_is_escaped() -> None:
    hostile = '</td></svg><script>alert("$x_1$")</script>--><!-- &amp; ü'
    changes = {"model": hostile, "case": hostile, "message": hostile, "engine": hostile}
    text = html_from_report(report(finding(status="failed", **changes)))
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 1
    assert "alert(" in page.text


def test_same_report_gives_the_same_bytes(failed_page: str) -> None:
    assert html_from_report(realistic("failed")) == failed_page


def test_thousand_findings_stay_light(tmp_path: Path) -> None:
    many = [
        finding(model=f"model-{i % 60}", case=f"case-{i}", numbers={
            "ratio": 0.001 * (i + 1), "error_max": 1e-6, "error_mean": 1e-7, "bound_max": 3e-6,
            "bound_mean": 2e-7, "at": [0, 17, 301], "value": 0.4, "reference": 0.4, "rms": 1.0})
        for i in range(1000)
    ]  # fmt: skip
    write_html(report(*many), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_unwritable_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_html(report(), tmp_path / "file" / "report.html")
