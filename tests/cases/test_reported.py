"""Every report has its case, and the case is there."""

from __future__ import annotations

from tests.cases import test_refusals
from tests.cases.reported import FILE, MODULE, REFUSED, REPORTED
from tests.cases.test_cases import CASES
from tests.cases.test_operator_files import FILES


def test_every_report_has_a_case() -> None:
    there = {
        MODULE: {case.name for case in CASES},
        FILE: set(FILES),
        REFUSED: {name for name in dir(test_refusals) if name.startswith("test_")},
    }
    assert len(REPORTED) == 47
    assert [report for report in REPORTED if report.case not in there[report.outcome]] == []
