"""Proves an endpoint: a bundle's cases go through it, and what comes back is judged as always."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from attnport.errors import EngineUnavailableError
from attnport.export.bundle import Bundle
from attnport.serve.oip.client import EndpointError
from attnport.serve.oip_engine import OipEngine
from attnport.validate.coverage import COVERAGE, coverage
from attnport.validate.finding import Finding, Subject
from attnport.validate.machine import this_machine
from attnport.validate.parity import check_parity
from attnport.validate.progress import Progress
from attnport.validate.report import Report


def prove_endpoint(
    bundle: Bundle, engine: OipEngine, *, progress: Progress | None = None
) -> Report:
    """A report on an endpoint: that it serves this model, and that its results are right.

    Args:
        bundle: What it serves.
        engine: The endpoint.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        BundleError: If a case cannot be read.
    """
    subject = Subject.of(bundle, engine.kind)
    findings = [_check_metadata(subject, engine)]
    if findings[0].status == "passed":
        findings += _check_cases(bundle, engine, progress)
    else:
        # What does not serve this model cannot be asked for its results.
        message = f"no case was run: {findings[0].message}"
        findings.append(subject.finding("parity", COVERAGE, "not run", message, required=True))
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=this_machine(),
        findings=tuple(findings),
    )


def _check_metadata(subject: Subject, engine: OipEngine) -> Finding:
    try:
        problem = engine.disagreement()
    except EngineUnavailableError as err:
        return subject.finding("engine", "metadata", "not run", str(err), required=True)
    except EndpointError as err:
        return subject.finding("engine", "metadata", "failed", str(err), required=True)
    if problem:
        message = f"the endpoint serves another model than the bundle: {problem}"
        return subject.finding("engine", "metadata", "failed", message, required=True)
    message = "the endpoint's model takes and gives what the bundle does"
    return subject.finding("engine", "metadata", "passed", message, required=True)


def _check_cases(bundle: Bundle, engine: OipEngine, progress: Progress | None) -> list[Finding]:
    found: list[Finding] = []
    cases = bundle.manifest.cases
    for done, record in enumerate(cases):
        if progress is not None:
            progress(record.name, done / len(cases))
        found += check_parity(engine, bundle, record.name, required=True)
    outputs = [spec.name for spec in engine.outputs]
    subject = Subject.of(bundle, engine.kind)
    found.append(coverage(subject, found, outputs, bundle.axes.values(), required=True))
    return found


def failures(findings: Sequence[Finding]) -> str:
    """What keeps an endpoint from being proved, in one sentence; empty where nothing does."""
    return "; ".join(
        f"{finding.case}: {finding.message}"
        for finding in findings
        if finding.required and finding.status != "passed"
    )
