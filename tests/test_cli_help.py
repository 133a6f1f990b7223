"""Help that teaches, answers at once, and agrees with what is written down."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnport import __version__, cli

COMMANDS = (
    "models",
    "export",
    "build",
    "validate",
    "bisect",
    "explain",
    "run",
    "generate",
    "serve",
    "shard",
    "triton",
    "fuse",
    "inspect",
    "check",
    "doctor",
)
HEAVY = ("torch", "numpy", "onnx", "onnxruntime", "tensorrt_rtx", "scipy", "rich", "uvicorn")
REFERENCE = Path(__file__).parent.parent / "docs" / "cli.md"


def _help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["export", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from attnport.cli import main; "
        f"assert main({words!r}) == 0; "
        f"sys.exit(', '.join(m for m in {HEAVY!r} if m in sys.modules) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert f"attnport {command}" in _help(capsys, command).partition("Usage:")[2].split("\n", 1)[1]


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _help(capsys)
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", shown, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_reference_names_every_option(capsys: pytest.CaptureFixture[str], command: str) -> None:
    section = REFERENCE.read_text("utf-8").partition(f"## attnport {command}\n")[2]
    section = section.partition("\n## ")[0]
    options = set(re.findall(r"--[a-z][a-z-]+", _help(capsys, command).partition("Options:")[2]))
    missing = sorted(option for option in options - {"--help"} if option not in section)
    assert not missing


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"attnport {__version__}\n"


@pytest.mark.parametrize("module", ["attnport", "attnport.export"])
def test_modules_run_as_programs(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: attnport")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert "Commands:" in shown.out + shown.err
