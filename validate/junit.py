"""A report as JUnit XML: what CI systems show as tests.

One suite for each model and dtype, one test case for each Finding. A Finding that was not run is
skipped with its reason; where it was required it is an error, so that it is not taken for a pass.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from attnport.errors import UsageError
from attnport.validate.finding import Finding
from attnport.validate.report import Report

# What XML 1.0 cannot hold, escaped or not.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def junit_from_report(report: Report) -> JUnitXml:
    """The report as suites of test cases."""
    xml = JUnitXml("attnport")
    for model, dtype in dict.fromkeys((f.model, f.dtype) for f in report.findings):
        suite = TestSuite(_clean(f"{model} {dtype}"))
        suite.add_property("verdict", report.verdict)
        suite.timestamp = report.created
        suite.add_testcases(
            [_case(f) for f in report.findings if (f.model, f.dtype) == (model, dtype)]
        )
        xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]  # junitparser 5.0
    return xml


def write_junit(report: Report, path: str | Path) -> None:
    """Writes the file, whole or not at all.

    Raises:
        UsageError: If it cannot be written.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        junit_from_report(report).write(str(beside), pretty=True)
        beside.replace(target)
    except OSError as err:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise UsageError(
            f"the report cannot be written to {target} ({err.strerror}): name another file"
        ) from err


def _case(finding: Finding) -> TestCase:
    case = TestCase(
        _clean(f"{finding.check} {finding.case}"),
        classname=_clean(f"{finding.model}.{finding.dtype}.{finding.engine}"),
    )
    message = _clean(finding.message)
    if finding.status == "failed":
        # A failure that nothing required must not turn a test red.
        case.result = (
            [Failure(message)]
            if finding.required
            else [Skipped(f"failed, not required: {message}")]
        )
    elif finding.status == "not run":
        case.result = (
            [Error(f"required, and not run: {message}")]
            if finding.required
            else [Skipped(message)]
        )
    else:
        case.system_out = message
    return case


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
