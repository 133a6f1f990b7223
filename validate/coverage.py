"""Coverage: whether the cases of an engine, taken together, prove its parity.

A case that is uninformative, or overflows in PyTorch, is no proof. An engine with an output that
passed no other was not proved, however little went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnport.validate.finding import Finding, Number, Status, Subject

COVERAGE = "coverage"  # the case of the Finding that sums up an engine's parity


def coverage(
    subject: Subject, findings: Sequence[Finding], outputs: Sequence[str], *, required: bool
) -> Finding:
    """Sums up the parity Findings of one engine.

    Args:
        subject: The engine.
        findings: Its parity Findings, one for each case and output.
        outputs: The names of the bundle's outputs.
        required: Whether parity is required of this engine.
    """
    statuses = [finding.status for finding in findings]
    numbers: dict[str, Number] = {
        "passed": statuses.count("passed"),
        "failed": statuses.count("failed"),
        "not_run": statuses.count("not run"),
    }
    unproved = [name for name in outputs if not _is_proved(name, findings, outputs)]
    status, message = _judge(statuses, unproved)
    return subject.finding("parity", COVERAGE, status, message, required=required, numbers=numbers)


def _is_proved(name: str, findings: Sequence[Finding], outputs: Sequence[str]) -> bool:
    ending = f"/{name}" if len(outputs) > 1 else ""
    return any(f.status == "passed" and f.case.endswith(ending) for f in findings)


def _judge(statuses: Sequence[Status], unproved: Sequence[str]) -> tuple[Status, str]:
    total, passed = len(statuses), statuses.count("passed")
    if "failed" in statuses:
        return "failed", f"{statuses.count('failed')} of {total} comparisons failed"
    if not statuses:
        return "not run", "the bundle holds no case: export it with cases"
    if unproved:
        names = ", ".join(unproved)
        return "not run", f"no informative case passed for {names}: add sizes or magnitudes"
    left = f", {total - passed} not run or uninformative" if passed < total else ""
    return "passed", f"{passed} of {total} comparisons passed{left}"
