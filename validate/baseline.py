"""A report against an earlier one: what became worse, what became better, what is gone.

Findings are paired by model, dtype, engine, check and case, and not by the bundle's hash: a bundle
that was exported again is what one compares. Latencies are compared on the same processor only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from attnport.errors import UsageError
from attnport.validate.finding import GRAPH, Finding, Number, Status, Subject
from attnport.validate.report import Measurement, Report

Key = tuple[str, str, str, str, str]
_RANKS: dict[Status, int] = {"passed": 0, "not run": 1, "failed": 2}


class _Change(NamedTuple):
    status: Status
    message: str
    numbers: dict[str, Number]


def require_same_model(baseline: Report, model: str, dtype: str) -> None:
    """Refuses a baseline that could not be compared with, before anything is proved.

    Args:
        baseline: The earlier report.
        model: The bundle's name.
        dtype: The bundle's dtype.

    Raises:
        UsageError: If the baseline is of other models or dtypes altogether.
    """
    earlier = {key[:2] for key in _by_key(baseline)}
    if (model, dtype) not in earlier:
        raise UsageError(
            f"the baseline is of {_names(earlier)}, and the bundle {model} in {dtype}: give an "
            "earlier report of the same model and dtype"
        )


def compare(report: Report, baseline: Report, percent: float | None) -> list[Finding]:
    """What changed, one Finding each, and one that sums up.

    What became worse failed, and is required; what became better passed. A Finding that is gone is
    `not run`, and required where the baseline required it.

    Args:
        report: The new one.
        baseline: The earlier one.
        percent: By how much a number may be worse; None to compare statuses only.

    Raises:
        UsageError: If the baseline is of other models or dtypes altogether.
    """
    now, before = _by_key(report), _by_key(baseline)
    _require_same_models(now, before)
    changes = [
        _finding(now[key], change)
        for key in now.keys() & before.keys()
        if (change := _change(now[key], before[key], percent)) is not None
    ]
    gone = [
        _gone(before[key]) for key in sorted(before.keys() - now.keys()) if _is_model(key, now)
    ]
    slower = list(_measured(report, baseline, percent))
    changes.sort(key=lambda finding: (finding.status != "failed", finding.case))
    summary = _summary(report, [*changes, *gone, *slower], new=len(now.keys() - before.keys()))
    return [*changes, *gone, *slower, summary]


def _by_key(report: Report) -> dict[Key, Finding]:
    return {
        (f.model, f.dtype, f.engine, f.check, f.case): f
        for f in report.findings
        if f.check != "baseline"
    }


def _require_same_models(now: Mapping[Key, Finding], before: Mapping[Key, Finding]) -> None:
    models, earlier = ({key[:2] for key in found} for found in (now, before))
    if not models & earlier:
        raise UsageError(
            f"the baseline is of {_names(earlier)}, and this report of {_names(models)}: give an "
            "earlier report of the same model and dtype"
        )


def _names(models: set[tuple[str, str]]) -> str:
    return ", ".join(f"{model} in {dtype}" for model, dtype in sorted(models)) or "nothing"


def _is_model(key: Key, now: Mapping[Key, Finding]) -> bool:
    return any(key[:2] == other[:2] for other in now)


def _change(now: Finding, before: Finding, percent: float | None) -> _Change | None:
    if now.status != before.status:
        worse = _RANKS[now.status] > _RANKS[before.status]
        status: Status = "failed" if worse else "passed"
        what = "worse" if worse else "better"
        return _Change(
            status, f"{what}: {before.status} before, {now.status} now: {now.message}", {}
        )
    for name, label in (("ratio", "error over bound"), ("kernels", "kernels")):
        old, new = before.numbers.get(name), now.numbers.get(name)
        if percent is None or not isinstance(old, int | float) or not isinstance(new, int | float):
            continue
        # Within the bound an error may double by chance of rounding: only what comes near counts.
        noise = name == "ratio" and new < _QUIET_RATIO
        if new > old * (1 + percent / 100) and not noise:
            numbers: dict[str, Number] = {"before": old, "now": new, "percent": percent}
            return _Change(
                "failed", f"worse: {label} {old:.3g} before, {new:.3g} now, more than "
                f"{percent:g}%", numbers,
            )  # fmt: skip
    return None


# Good engines stay below this part of the bound (benchmarks/validate/calibration.md); beneath it
# an error says nothing about quality.
_QUIET_RATIO = 0.7


def _finding(now: Finding, change: _Change) -> Finding:
    subject = Subject(now.model, now.bundle, now.dtype, now.engine)
    return subject.finding(
        "baseline", f"{now.check}/{now.case}", change.status, change.message,
        required=change.status == "failed", numbers=change.numbers,
    )  # fmt: skip


def _gone(before: Finding) -> Finding:
    subject = Subject(before.model, before.bundle, before.dtype, before.engine)
    message = "the baseline holds it, and this report does not: look at the same engines and cases"
    return subject.finding(
        "baseline", f"{before.check}/{before.case}", "not run", message, required=before.required
    )


def _measured(report: Report, baseline: Report, percent: float | None) -> Iterator[Finding]:
    if percent is None:
        return
    same_machine = report.machine.cpu == baseline.machine.cpu
    earlier = {_measured_key(m): m for m in baseline.measurements}
    for measured in report.measurements:
        before = earlier.get(_measured_key(measured))
        if before is None or measured.note.startswith("A/A test"):
            continue
        subject = Subject(measured.model, measured.bundle, measured.dtype, measured.engine)
        for name in ("ratio", "kernels", "plan_bytes"):
            old, new = before.values.get(name), measured.values.get(name)
            if not isinstance(old, int | float) or not isinstance(new, int | float):
                continue
            if name == "ratio" and not same_machine:
                continue
            low = measured.values.get("ratio_low", new) if name == "ratio" else new
            if isinstance(low, int | float) and low > old * (1 + percent / 100):
                message = f"worse: {name} {old:.4g} before, {new:.4g} now, more than {percent:g}%"
                yield subject.finding(
                    "baseline", f"{measured.kind}/{name}", "failed", message, required=True,
                    numbers={"before": old, "now": new, "percent": percent},
                )  # fmt: skip


def _measured_key(measured: Measurement) -> tuple[str, str, str, str, bool]:
    same = measured.note.startswith("A/A test")
    return measured.model, measured.dtype, measured.engine, measured.kind, same


def _summary(report: Report, changes: list[Finding], *, new: int) -> Finding:
    statuses = [finding.status for finding in changes]
    worse, better, gone = (statuses.count(s) for s in ("failed", "passed", "not run"))
    first = report.findings[0]
    subject = Subject(first.model, first.bundle, first.dtype, GRAPH)
    message = (
        f"against the baseline: {worse} worse, {better} better, {gone} gone, {new} new"
        if worse or better or gone or new
        else "against the baseline: nothing changed"
    )
    return subject.finding(
        "baseline", "summary", "failed" if worse else "passed", message, required=True,
        numbers={"worse": worse, "better": better, "gone": gone, "new": new},
    )  # fmt: skip
