"""What the HTML page says, before it is HTML: the answer, its reasons, and a row for each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnport.validate.coverage import COVERAGE
from attnport.validate.finding import GRAPH, Finding, Number
from attnport.validate.fusion import EVERY
from attnport.validate.report import Measurement, Report
from attnport.validate.table import SummaryRow, summary_rows

# How many reasons stand above the fold; the others are in the table of findings.
MOST_REASONS = 3
_LONGEST_NUMBER = 60
# Cases that are the check itself: the sum of all, the ratio of latencies.
_SUMS = (COVERAGE, "ratio")

Mark = Literal["passed", "failed", "not run", "not required"]


@dataclass(frozen=True)
class Reason:
    """Required Findings that did not pass and say the same.

    Attributes:
        status: "failed" or "not run".
        subject: What it is about: check, engine and models.
        message: What is wrong and what to do.
    """

    status: str
    subject: str
    message: str


@dataclass(frozen=True)
class Row:
    """A row of the table by model and dtype.

    Attributes:
        mark: What the row's requirements came to.
        summary: What the terminal's table says, too.
        speed: For each engine that is not a torch form how many times as fast as the fastest one
            it is, and the same in words.
    """

    mark: Mark
    summary: SummaryRow
    speed: tuple[tuple[str, str], ...]


def answer(report: Report) -> str:
    """Whether it can be shipped, in a sentence."""
    required = [finding.status for finding in report.findings if finding.required]
    if not required:
        return "Not known. Nothing was required, so nothing was proved."
    everything = (
        "The one requirement" if len(required) == 1 else f"All {len(required)} requirements"
    )
    failed, missing = required.count("failed"), required.count("not run")
    if failed:
        also = f", and {missing} could not be checked" if missing else ""
        return f"No. {failed} of {_counted(len(required))} failed{also}."
    if missing:
        return f"Not yet. Nothing failed, but {missing} of {_counted(len(required))} could not be checked."
    return f"Yes. {everything} passed."


def remarks(report: Report) -> list[str]:
    """What a reader of the answer would otherwise take for granted."""
    return [
        f"{f.model} {f.dtype}: {f.message if f.case == EVERY else f'{f.case} was {f.message}'}"
        for f in report.findings
        if f.check == "fusion" and f.engine == GRAPH
    ]


def reasons(report: Report) -> list[Reason]:
    """Why not, the failed requirements first; those that say the same are told once."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    left = [f for f in report.findings if f.required and f.status != "passed"]
    # The sum of an engine's cases is no news beside the case that failed.
    for finding in sorted(left, key=lambda f: (f.status != "failed", f.case == COVERAGE)):
        key = (finding.status, finding.check, finding.engine, finding.message)
        groups.setdefault(key, []).append(finding)
    return [
        Reason(status, _subject(check, engine, members), message)
        for (status, check, engine, message), members in groups.items()
    ]


def rows(report: Report) -> list[Row]:
    """The table by model and dtype."""
    return [
        Row(_mark(report, row), row, _speed(report.measurements, row))
        for row in summary_rows(report)
    ]


def loose_failures(report: Report) -> int:
    """How many Findings failed that no requirement covers."""
    return sum(f.status == "failed" and not f.required for f in report.findings)


def same_text(report: Report) -> str:
    """What the A/A tests say of the latencies; empty where there was none."""
    tests = [m for m in report.measurements if m.note.startswith("A/A test")]
    if not tests:
        return ""
    held = sum(m.note.endswith("no difference") for m in tests)
    worst = max(tests, key=_spread)
    return (
        f"A/A test, one engine entered twice: no difference in {held} of {len(tests)} bundles; the "
        f"widest interval is {worst.values.get('ratio_low')} to {worst.values.get('ratio_high')}."
    )


def _spread(measured: Measurement) -> float:
    low, high = measured.values.get("ratio_low"), measured.values.get("ratio_high")
    return high - low if isinstance(low, int | float) and isinstance(high, int | float) else 0.0


def numbers_text(numbers: Mapping[str, Number]) -> str:
    """Numbers in one line, rounded for reading; the JSON has all digits."""
    return " · ".join(f"{name} {_number(value)}" for name, value in numbers.items())


def _counted(requirements: int) -> str:
    return "1 requirement" if requirements == 1 else f"{requirements} requirements"


def _subject(check: str, engine: str, members: Sequence[Finding]) -> str:
    first = members[0]
    # The graph and the sum of all cases are names of ours that say nothing to a reader.
    where = "" if engine == GRAPH else f" · {engine}"
    if len(members) == 1:
        of = "" if first.case in _SUMS else f" of {first.case}"
        return f"{first.model} {first.dtype} · {check}{of}{where}"
    models = list(dict.fromkeys(f"{f.model} {f.dtype}" for f in members))
    which = models[0] if len(models) == 1 else f"{models[0]} and {len(models) - 1} more"
    return f"{which} · {check}{where} · {len(members)} findings"


def _mark(report: Report, row: SummaryRow) -> Mark:
    found = {
        finding.status
        for finding in report.findings
        if finding.required and (finding.model, finding.dtype) == (row.model, row.dtype)
    }
    for status in ("failed", "not run", "passed"):
        if status in found:
            return status
    return "not required"


def _speed(measurements: Iterable[Measurement], row: SummaryRow) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{m.engine} {_times(m)}", f"{m.engine}: {m.note}")
        for m in measurements
        if m.kind == "latency"
        and (m.model, m.dtype) == (row.model, row.dtype)
        and not m.engine.startswith("torch-")
        and not m.note.startswith("A/A test")
    )


def _times(measured: Measurement) -> str:
    ratio = measured.values.get("ratio")
    if measured.note.startswith("no difference"):
        return "no difference"
    return f"{1 / ratio:.2f}×" if isinstance(ratio, float) and ratio > 0 else "not compared"  # noqa: RUF001


def _number(value: Number) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST_NUMBER else text[: _LONGEST_NUMBER - 1] + "…"
