"""What is drawn from a report: JUnit, Markdown, the statement of what was covered; explain."""

from __future__ import annotations

import typing
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.validate.reports import finding, report

from attnport.errors import UsageError
from attnport.validate.covered import statement
from attnport.validate.explain import EXPLANATIONS, explain
from attnport.validate.finding import Check
from attnport.validate.junit import write_junit
from attnport.validate.markdown import (
    STEP_SUMMARY,
    append_step_summary,
    markdown_from_report,
    write_markdown,
)

MIXED = report(
    [
        finding(case="a"),
        finding(case="b", status="failed", message="error <2> | times & more\x00"),
        finding(case="c", status="failed", required=False),
        finding(case="d", status="not run", message="no device", required=False),
        finding(case="e", status="not run", message="no device"),
    ]
)


def test_junit_tells_each_status_apart(tmp_path: Path) -> None:
    write_junit(MIXED, tmp_path / "out" / "junit.xml")
    root = ET.parse(tmp_path / "out" / "junit.xml").getroot()
    assert (
        root.attrib | {"tests": "5", "failures": "1", "errors": "1", "skipped": "2"} == root.attrib
    )
    results = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert results == {
        "parity a": ["system-out"], "parity b": ["failure"], "parity c": ["skipped"],
        "parity d": ["skipped"], "parity e": ["error"],
    }  # fmt: skip


def test_markdown_says_the_verdict_and_escapes_what_was_found() -> None:
    text = markdown_from_report(MIXED)
    assert text.startswith("## ❌ attnport: failed\n")
    assert "error &lt;2> \\| times &amp; more" in text
    assert "proved at sizes batch=2 seq=7; masks causal; numbers normal" in text
    assert all(line.count("|") >= 10 for line in text.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("status", ["passed", "not run"])
def test_markdown_of_the_other_verdicts(status: str) -> None:
    assert f"attnport: {'proved' if status == 'passed' else 'not proved'}" in markdown_from_report(
        report([finding(status=status)])
    )


def test_the_step_summary_is_added_to_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STEP_SUMMARY, raising=False)
    append_step_summary(MIXED)
    monkeypatch.setenv(STEP_SUMMARY, str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    append_step_summary(MIXED)
    assert (tmp_path / "summary.md").read_text("utf-8").startswith("before\n## ❌")


def test_a_report_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for write in (write_junit, write_markdown):
        with pytest.raises(UsageError, match="the report cannot be written to"):
            write(MIXED, tmp_path / "file" / "report")
    monkeypatch.setenv(STEP_SUMMARY, str(tmp_path))
    with pytest.raises(UsageError, match="cannot be written"):
        append_step_summary(MIXED)


def test_the_statement_says_what_was_proved_and_what_was_not() -> None:
    said = statement(
        report(
            [
                finding(),
                finding(check="property", case="opt/alone:batch"),
                finding(
                    case="big", status="not run", message="uninformative: too wide",
                    numbers={"mask": "block", "magnitude": "large", "sizes": "batch=8 seq=512"},
                ),
                finding(engine="tensorrt-rtx", case="coverage", status="not run",
                        message="no CUDA device", numbers={}),
            ]
        )
    )  # fmt: skip
    assert said == [
        "mha float32 on ort-cpu: proved at sizes batch=2 seq=7; masks causal; numbers normal; "
        "properties alone:batch.",
        "mha float32 on ort-cpu: not proved: big (uninformative).",
        "mha float32 on ort-cpu: in no informative case: masks block; numbers large.",
        "mha float32 on tensorrt-rtx: nothing proved. No CUDA device",
    ]


def test_every_check_is_explained() -> None:
    assert set(EXPLANATIONS) == set(typing.get_args(Check))
    for one in EXPLANATIONS.values():
        assert one.meaning
        assert one.judged
        assert one.remedies


def test_an_unknown_check_is_refused_with_the_near_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'parity'"):
        explain("party")
