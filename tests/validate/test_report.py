"""The verdict and its exit code; the report on disk; its written schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from attnport.errors import UsageError
from attnport.validate.finding import Finding, Number, Status, Subject
from attnport.validate.machine import this_machine
from attnport.validate.report import FORMAT_VERSION, Measurement, Report
from attnport.validate.schema import SCHEMA, schema_text

SUBJECT = Subject("small", "hash", "float32", "ort-cpu")


def finding(status: Status, *, required: bool = True) -> Finding:
    numbers: dict[str, Number] = {
        "at": [1, 2],
        "ratio": float("nan"),
        "kernel": None,
        "merged": True,
        "rms": 2.0,
    }
    return SUBJECT.finding("parity", "b1n1", status, "words", required=required, numbers=numbers)


def report(*findings: Finding) -> Report:
    latency = Measurement(
        kind="latency",
        model="small",
        bundle="hash",
        dtype="float32",
        engine="ort-cpu",
        case="b1n1",
        values={"median_us": 12.5, "samples": 7, "reference": "torch-sdpa"},
    )
    return Report(
        created="2030-01-01T00:00:00+00:00",
        machine=this_machine(),
        findings=findings,
        measurements=(latency,),
    )


PASSED, FAILED, NOT_RUN = finding("passed"), finding("failed"), finding("not run")
SHOWN = tuple(finding(status, required=False) for status in ("passed", "failed", "not run"))


@pytest.mark.parametrize(
    ("findings", "verdict", "exit_code"),
    [
        ((PASSED,), "proved", 0),
        ((PASSED, *SHOWN), "proved", 0),
        ((PASSED, FAILED), "failed", 1),
        ((NOT_RUN, FAILED, PASSED), "failed", 1),
        ((PASSED, NOT_RUN), "not proved", 3),
        ((NOT_RUN,), "not proved", 3),
        (SHOWN, "not proved", 3),
        ((), "not proved", 3),
    ],
)
def test_verdict(findings: tuple[Finding, ...], verdict: str, exit_code: int) -> None:
    made = report(*findings)
    assert (made.verdict, made.exit_code) == (verdict, exit_code)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    made = report(PASSED, *SHOWN)
    made.save(tmp_path / "new" / "report.json")
    assert Report.load(tmp_path / "new" / "report.json") == made
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["report.json"]


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "proved"}, "it was edited"),
        ({"format_version": FORMAT_VERSION + 1}, "upgrade attnport"),
        ({"findings": "none"}, "not a report"),
        ({"extra": 1}, "not a report"),
    ],
)
def test_what_was_changed_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    file = tmp_path / "report.json"
    report(PASSED, FAILED).save(file)
    edit(file, **changes)
    with pytest.raises(UsageError, match=words):
        Report.load(file)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format_version": 99}', "\x00", '{"verdict": "proved"}']
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="not a report"):
        Report.load(file)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        report(PASSED).save(tmp_path / "file" / "report.json")


def test_merged_keeps_everything_and_refuses_another_machine() -> None:
    first, second = report(PASSED), report(FAILED)
    both = Report.merged([first, second])
    assert both.findings == (PASSED, FAILED)
    assert len(both.measurements) == 2
    elsewhere = second.machine.model_copy(update={"cpu": "another"})
    with pytest.raises(UsageError, match="same machine"):
        Report.merged([first, second.model_copy(update={"machine": elsewhere})])
    with pytest.raises(UsageError, match="0 reports"):
        Report.merged([])


def test_the_written_schema_is_that_of_the_models() -> None:
    assert SCHEMA.read_text("utf-8") == schema_text(), "run `python -m attnport.validate.schema`"


def test_a_report_is_valid_under_the_schema_and_a_fourth_status_is_not(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    report(PASSED, *SHOWN).save(tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text())
    validator = Draft202012Validator(schema)
    validator.validate(content)
    content["findings"][0]["status"] = "skipped"
    assert not validator.is_valid(content)


def test_every_field_is_described() -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    parts = [schema, *schema["$defs"].values()]
    silent = [
        name
        for part in parts
        for name, field in part["properties"].items()
        if "description" not in field
    ]
    assert silent == []


def test_this_machine_names_itself() -> None:
    machine = this_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
    assert "numpy" in machine.versions
