"""A report at a glance: one row for each model and dtype, and a sentence for each failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnport.validate.coverage import COVERAGE
from attnport.validate.finding import GRAPH, Check, Finding, Number
from attnport.validate.fusion import EVERY
from attnport.validate.report import Measurement, Report

NOTHING = "-"
_MOST_NAMES = 4


@dataclass(frozen=True)
class SummaryRow:
    """What a report says of one model in one dtype, in words short enough for a table.

    Attributes:
        model: The bundle's name.
        dtype: Its dtype.
        parity: Comparisons passed, of all, by engine: "12/14 ort-cpu".
        unproved: What the others came to, by engine: "ort-cpu: 2 of 14 prove nothing:
            uninformative (min, seq-1)".
        worst_ratio: The largest error over bound among them; None where nothing was compared, or
            where an error is not finite.
        qkv_merged: Projection groups merged in the file, of all: "1/1".
        fused_into: The kernels, by attentions: "6/6 _gemm_mha_v2_…"; or why there is none.
        causal: What the kernels make of causality: "bounded", "masked", "not causal".
        kernels: Kernel launches of each plan, by engine.
        speed: Each engine's latency against the fastest torch form and torch-eager.
    """

    model: str
    dtype: str
    parity: tuple[str, ...]
    unproved: tuple[str, ...]
    worst_ratio: float | None
    qkv_merged: str
    fused_into: tuple[str, ...]
    causal: str
    kernels: dict[str, int]
    speed: tuple[str, ...]


def summary_rows(report: Report) -> list[SummaryRow]:
    """One row for each model and dtype, in the order of the report."""
    keys = [(finding.model, finding.dtype) for finding in report.findings]
    keys += [(measured.model, measured.dtype) for measured in report.measurements]
    return [_row(report, model, dtype) for model, dtype in dict.fromkeys(keys)]


def failures(report: Report) -> list[str]:
    """A sentence for each required Finding that did not pass, the failed ones first."""
    left = [f for f in report.findings if f.required and f.status != "passed"]
    return [
        f"{f.status}: {f.model} {f.dtype}, {f.check} of {f.case} on {f.engine}: {f.message}"
        for f in sorted(left, key=lambda finding: finding.status != "failed")
    ]


def _row(report: Report, model: str, dtype: str) -> SummaryRow:
    findings = [f for f in report.findings if (f.model, f.dtype) == (model, dtype)]
    measured = [m for m in report.measurements if (m.model, m.dtype) == (model, dtype)]
    return SummaryRow(
        model=model,
        dtype=dtype,
        parity=_parity(_of("parity", findings)),
        unproved=_unproved(_of("parity", findings)),
        worst_ratio=_worst_ratio(_of("parity", findings)),
        qkv_merged=_qkv(_of("qkv", findings)),
        fused_into=_fused_into(_of("fusion", findings)),
        causal=_causal(_of("causal", findings), _of("fusion", findings)),
        kernels=_kernels(measured),
        speed=tuple(text for m in measured if (text := _speed(m))),
    )


def _of(check: Check, findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def _parity(findings: Sequence[Finding]) -> tuple[str, ...]:
    cells = []
    # What is said of no engine in particular stands among the reasons.
    for engine in dict.fromkeys(f.engine for f in findings if f.engine != GRAPH):
        mine = [f for f in findings if f.engine == engine]
        cases = [f for f in mine if f.case != COVERAGE]
        if cases:
            passed = sum(f.status == "passed" for f in cases)
            cells.append(f"{passed}/{len(cases)} {engine}")
        else:
            why = mine[0].message.removeprefix("not built: ").removeprefix("not run: ")
            cells.append(f"{engine} not run: {why}")
    return tuple(cells)


def _unproved(findings: Sequence[Finding]) -> tuple[str, ...]:
    """A case that proves nothing must not vanish from the count."""
    said = []
    for engine in dict.fromkeys(f.engine for f in findings):
        cases = [f for f in findings if f.engine == engine and f.case != COVERAGE]
        reasons: dict[str, list[str]] = {}
        for finding in cases:
            if finding.status == "not run":
                reasons.setdefault(_short(finding.message), []).append(finding.case)
        if reasons:
            left = sum(map(len, reasons.values()))
            why = "; ".join(f"{reason} ({_named(names)})" for reason, names in reasons.items())
            said.append(f"{engine}: {left} of {len(cases)} prove nothing: {why}")
    return tuple(said)


def _named(cases: Sequence[str]) -> str:
    more = f" and {len(cases) - _MOST_NAMES} more" if len(cases) > _MOST_NAMES else ""
    return ", ".join(cases[:_MOST_NAMES]) + more


def _short(message: str) -> str:
    """The fact, without the explanation and the remedy that follow it."""
    return re.split(r" \(|: ", message, maxsplit=1)[0]


def _worst_ratio(findings: Sequence[Finding]) -> float | None:
    judged = [
        f.numbers["ratio"] for f in findings if f.status != "not run" and "ratio" in f.numbers
    ]
    ratios = [ratio for ratio in judged if isinstance(ratio, int | float)]
    # A ratio that is not finite stands as a word: no number may then pose as the worst.
    return max(ratios) if ratios and len(ratios) == len(judged) else None


def _qkv(findings: Sequence[Finding]) -> str:
    graph = [f for f in findings if f.engine == GRAPH and f.status != "not run"]
    if not graph:
        return NOTHING
    return f"{sum(f.status == 'passed' for f in graph)}/{len(graph)}"


def _fused_into(findings: Sequence[Finding]) -> tuple[str, ...]:
    cells = []
    for engine in dict.fromkeys(f.engine for f in findings):
        mine = [f for f in findings if f.engine == engine]
        if any(f.message.startswith("not applicable") for f in mine):
            continue
        if engine == GRAPH:
            cells += [_of_the_graph(f) for f in mine]
            continue
        fused = [f for f in mine if f.status == "passed"]
        if len(fused) == len(mine):
            kernels = ", ".join(dict.fromkeys(str(f.numbers["kernel"]) for f in fused))
            cells.append(f"{len(fused)}/{len(mine)} {kernels}")
        else:
            reason = next(f.message for f in mine if f.status != "passed")
            reason = _short(reason.removeprefix("not fused: ").removeprefix("not built: "))
            cells.append(f"{len(fused)}/{len(mine)} {engine}: {reason}")
    return tuple(cells)


def _of_the_graph(finding: Finding) -> str:
    """What kept an attention from being looked at in any engine."""
    if finding.case == EVERY:
        return "no attention found"
    return f"{finding.case} left as written"


def _causal(findings: Sequence[Finding], fusion: Sequence[Finding]) -> str:
    if findings:
        # Without a fused kernel there is nothing that causality could be said of.
        words = [str(f.numbers["causal"]) for f in findings if f.numbers.get("kernel")]
        return ", ".join(dict.fromkeys(words)) or NOTHING
    return "not causal" if any(f.status == "passed" for f in fusion) else NOTHING


def _kernels(measured: Iterable[Measurement]) -> dict[str, int]:
    counts = {m.engine: m.values.get("kernels") for m in measured if m.kind == "build"}
    return {engine: count for engine, count in counts.items() if isinstance(count, int)}


def _speed(measured: Measurement) -> str:
    if measured.kind != "latency" or measured.note.startswith("A/A test"):
        return ""
    said = [
        _ratio(measured.values, "ratio", str(measured.values.get("reference"))),
        _ratio(measured.values, "eager_ratio", "torch-eager"),
    ]
    if measured.values.get("reference") == "torch-eager":
        said.pop()
    against = ", ".join(text for text in said if text)
    return f"{measured.engine} {against}" if against else ""


def _ratio(values: dict[str, Number], name: str, reference: str) -> str:
    """How many times as fast as the reference; ratios are of latencies, so it is turned over."""
    found = [values.get(key) for key in (name, f"{name}_high", f"{name}_low")]
    ratio, high, low = (x if isinstance(x, int | float) and x > 0 else None for x in found)
    if ratio is None or high is None or low is None:
        return ""
    return f"{1 / ratio:.2f}x ({1 / high:.2f} to {1 / low:.2f}) of {reference}"
