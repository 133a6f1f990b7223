"""The script for a GPU machine is safe where next to nothing is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu import road
from benchmarks.gpu.road import STEPS, Step

ROOT = Path(__file__).parents[2]


def test_a_missing_library_is_said(tmp_path: Path) -> None:
    outcome = road._run(Step("x", "", ("json", "no_such_library"), 60), tmp_path, 100)
    assert outcome == {"status": "not run", "reason": "no_such_library is not installed"}


def test_a_step_that_fails_or_hangs_is_that_and_no_more(tmp_path: Path) -> None:
    failed = road._run(Step("no such step", "", (), 60), tmp_path, 100)
    assert failed["status"] == "failed"
    assert "KeyError" in failed["output"]
    assert road._run(STEPS[0], tmp_path, 1)["reason"] == "the time for all steps was over"


def test_nothing_but_python_is_needed_to_start(tmp_path: Path) -> None:
    """-S: without site-packages, as in a Python that pip installed nothing into."""
    command = [sys.executable, "-S", "-m", "benchmarks.gpu.road", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert list(results["steps"]) == [step.name for step in STEPS]
    assert {step["status"] for step in results["steps"].values()} == {"not run"}
    assert "| torch | not run |" in (tmp_path / "results.md").read_text("utf-8")


def test_the_steps_of_the_table_are_the_ones_that_exist() -> None:
    from benchmarks.gpu import steps

    assert list(steps._STEPS) == [step.name for step in STEPS]
    assert sum(step.seconds for step in STEPS[:2]) < 480
