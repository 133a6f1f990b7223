"""Coverage: whether the cases of an engine, taken together, prove its parity.

A case that is uninformative, or overflows in PyTorch, is no proof. An engine with an output that
passed no other was not proved, however little went wrong. Nor was one that passed none at the smallest
size of an axis, where sizes of 1 broadcast and past lengths of 0 vanish: much goes wrong there alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attnport.axes import Axis
from attnport.validate.finding import Finding, Number, Status, Subject

COVERAGE = "coverage"  # the case of the Finding that sums up an engine's parity
_REMEDY = "add sizes or magnitudes, or cases of your own (--cases)"
_OVERFLOWS = "PyTorch overflows here"
NO_ELEMENTS = "uninformative: the output has no elements"


def coverage(
    subject: Subject,
    findings: Sequence[Finding],
    outputs: Sequence[str],
    axes: Iterable[Axis],
    *,
    required: bool,
) -> Finding:
    """Sums up the parity Findings of one engine.

    Args:
        subject: The engine.
        findings: Its parity Findings, one for each case and output.
        outputs: The names of the bundle's outputs.
        axes: The bundle's axes.
        required: Whether parity is required of this engine.
    """
    statuses = [finding.status for finding in findings]
    numbers: dict[str, Number] = {
        "passed": statuses.count("passed"),
        "failed": statuses.count("failed"),
        "not_run": statuses.count("not run"),
    }
    unproved = [name for name in outputs if not _is_proved(name, findings, outputs)]
    ends = [text for axis in axes if (text := _unproved_end(axis, findings))]
    status, message = _judge(statuses, unproved, ends, _common_reason(findings))
    return subject.finding("parity", COVERAGE, status, message, required=required, numbers=numbers)


def _is_proved(name: str, findings: Sequence[Finding], outputs: Sequence[str]) -> bool:
    ending = f"/{name}" if len(outputs) > 1 else ""
    return any(f.status == "passed" and f.case.endswith(ending) for f in findings)


def _common_reason(findings: Sequence[Finding]) -> str:
    """Why no case proves anything, where it is the same for all that were not run."""
    left = [f.message for f in findings if f.status == "not run"]
    # Numbers of one case stand in brackets.
    reasons = {re.split(r" \(|; ", message, maxsplit=1)[0] for message in left}
    if len(reasons) != 1 or len(left) < len(findings):
        return ""
    (reason,) = reasons
    if reason.startswith(_OVERFLOWS):
        return f"{reason}; that is the module's: export it in bfloat16 or float32"
    return reason


def _unproved_end(axis: Axis, findings: Sequence[Finding]) -> str:
    """The smallest size of an axis, as "seq=1", if cases have it and none of them passed."""
    end = f"{axis.name}={axis.min}"
    there = [
        finding
        for finding in findings
        if end in str(finding.numbers.get("sizes", "")).split() and finding.message != NO_ELEMENTS
    ]
    return end if there and not any(f.status == "passed" for f in there) else ""


def _judge(
    statuses: Sequence[Status], unproved: Sequence[str], ends: Sequence[str], why: str
) -> tuple[Status, str]:
    total, passed = len(statuses), statuses.count("passed")
    if "failed" in statuses:
        return "failed", f"{statuses.count('failed')} of {total} comparisons failed"
    if not statuses:
        return "not run", "the bundle holds no case: export it with cases"
    if unproved:
        names = ", ".join(unproved)
        return "not run", f"no informative case passed for {names}: {why or _REMEDY}"
    if ends:
        return "not run", (
            f"no informative case passed at {', '.join(ends)}, the smallest that the axis allows: "
            "see why those prove nothing, and give a case of your own (--cases), or begin the axis "
            "at what you need"
        )
    left = f", {total - passed} not run or uninformative" if passed < total else ""
    return "passed", f"{passed} of {total} comparisons passed{left}"
