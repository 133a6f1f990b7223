"""What a report proved and what it did not: sizes, masks, magnitudes, dtypes and engines, in words.

A proof is no better than its cases. This says which they were, so that nobody takes "proved" for
more than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnport.validate.coverage import COVERAGE
from attnport.validate.finding import Finding
from attnport.validate.report import Report

_DIMENSIONS = (("sizes", "sizes"), ("mask", "masks"), ("magnitude", "numbers"))
_MOST_SIZES = 12


def statement(report: Report) -> list[str]:
    """A sentence for each engine of each model and dtype on what was proved, and on what was not."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in report.findings:
        if finding.check in ("parity", "property"):
            key = (finding.model, finding.dtype, finding.engine)
            groups.setdefault(key, []).append(finding)
    said: list[str] = []
    for (model, dtype, engine), members in groups.items():
        cases = [f for f in members if f.check == "parity" and f.case != COVERAGE]
        head = f"{model} {dtype} on {engine}"
        proved = [f for f in cases if f.status == "passed"]
        if not proved:
            said.append(f"{head}: nothing proved. {_why(members)}".rstrip())
            continue
        said.append(f"{head}: proved at {_values(proved)}{_properties(members)}.")
        left = [f for f in cases if f.status == "not run"]
        if left:
            said.append(f"{head}: not proved: {_reasons(left)}.")
        only = _never(proved, cases)
        if only:
            said.append(f"{head}: in no informative case: {only}.")
    return said


def _values(findings: Sequence[Finding]) -> str:
    parts = []
    for name, label in _DIMENSIONS:
        found = _distinct(findings, name)
        if found:
            more = f" and {len(found) - _MOST_SIZES} more" if len(found) > _MOST_SIZES else ""
            parts.append(f"{label} {', '.join(found[:_MOST_SIZES])}{more}")
    return "; ".join(parts) or f"{len(findings)} cases"


def _distinct(findings: Iterable[Finding], name: str) -> list[str]:
    found = (str(f.numbers[name]) for f in findings if f.numbers.get(name) not in (None, ""))
    return list(dict.fromkeys(found))


def _never(proved: Sequence[Finding], cases: Sequence[Finding]) -> str:
    parts = []
    for name, label in _DIMENSIONS[1:]:
        shown = set(_distinct(proved, name))
        missing = [value for value in _distinct(cases, name) if value not in shown]
        if missing:
            parts.append(f"{label} {', '.join(missing)}")
    return "; ".join(parts)


def _properties(members: Sequence[Finding]) -> str:
    held = {
        f.case.rpartition("/")[2]
        for f in members
        if f.check == "property" and f.status == "passed"
    }
    return f"; properties {', '.join(sorted(held))}" if held else ""


def _reasons(findings: Sequence[Finding]) -> str:
    groups: dict[str, list[str]] = {}
    for finding in findings:
        reason = finding.message.partition(":")[0]
        groups.setdefault(reason, []).append(finding.case)
    return "; ".join(f"{', '.join(cases)} ({reason})" for reason, cases in groups.items())


def _why(members: Sequence[Finding]) -> str:
    last = next((f.message for f in members if f.case == COVERAGE), "")
    return last[:1].upper() + last[1:]
