"""The workflow and the action: right by GitHub's own schemas, and their commands do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
WORKFLOW = ROOT / ".github" / "workflows" / "attnport.yml"


@pytest.mark.parametrize(
    ("file", "schema"),
    [(ACTION, "vendor.github-actions"), (WORKFLOW, "vendor.github-workflows")],
    ids=["action", "workflow"],
)
def test_the_files_fit_githubs_schemas(file: Path, schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _steps(file: Path) -> list[dict[str, Any]]:
    content = yaml.safe_load(file.read_text("utf-8"))
    steps = content["runs"]["steps"] if "runs" in content else content["jobs"]["prove"]["steps"]
    assert isinstance(steps, list)
    return steps


def test_the_workflow_gives_the_action_only_inputs_that_it_has() -> None:
    known = yaml.safe_load(ACTION.read_text("utf-8"))["inputs"]
    (used,) = (step for step in _steps(WORKFLOW) if step.get("uses") == "./")
    assert set(used["with"]) <= set(known)


def _filled(text: str, inputs: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: inputs[m[1]], text)


def _environment(folder: Path) -> Iterator[tuple[str, str]]:
    yield from os.environ.items()
    yield "PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    yield "GITHUB_STEP_SUMMARY", str(folder / "summary.md")
    yield "GITHUB_OUTPUT", str(folder / "output.txt")


def _run_action(folder: Path, **given: str) -> list[int]:
    """Runs every step of the action as the runner does, and gives their exit codes."""
    declared = yaml.safe_load(ACTION.read_text("utf-8"))["inputs"]
    inputs = {name: one.get("default", "") for name, one in declared.items()} | given
    codes: list[int] = []
    for step in _steps(ACTION):
        if step.get("if") == "inputs.install != ''" and not inputs["install"]:
            continue
        if any(codes) and step.get("if") != "always()":
            continue
        env = dict(_environment(folder))
        env |= {name: _filled(text, inputs) for name, text in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        codes.append(subprocess.run(command, cwd=folder, env=env, check=False).returncode)
    return codes


def test_the_commands_of_workflow_and_action_prove_a_model(tmp_path: Path) -> None:
    (export,) = (step["run"] for step in _steps(WORKFLOW) if step.get("name") == "Export")
    env = dict(_environment(tmp_path))
    assert (
        subprocess.run(["bash", "-ec", export], cwd=tmp_path, env=env, check=False).returncode == 0
    )
    assert _run_action(tmp_path, bundle="build/model", engines="ort-cpu", install="") == [0, 0]
    reports = tmp_path / "attnport-reports"
    assert json.loads((reports / "report.json").read_text("utf-8"))["verdict"] == "proved"
    assert {file.name for file in reports.iterdir()} >= {"report.json", "report.html", "junit.xml"}
    assert "attnport: proved" in (tmp_path / "summary.md").read_text("utf-8")
    assert (tmp_path / "output.txt").read_text("utf-8") == "verdict=proved\n"


def test_a_command_that_fails_fails_the_action_and_says_not_proved(tmp_path: Path) -> None:
    assert _run_action(tmp_path, command="exit 3", install="") == [3, 0]
    assert (tmp_path / "output.txt").read_text("utf-8") == "verdict=not proved\n"


def test_the_install_command_of_the_workflow_names_extras_that_exist() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    text = WORKFLOW.read_text("utf-8") + ACTION.read_text("utf-8")
    for named in re.findall(r"(?:\.|attnport)\[([a-z,-]+)\]", text):
        assert set(named.split(",")) <= set(extras)
