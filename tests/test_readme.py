"""Every command and every piece of Python in README.md does what it is there for.

A block marked `sh` is run by bash, one marked `python` by Python, as it stands and in the order of
the page, in one folder with a copy of examples/. Of `make …` only the targets are looked up: what
they do is minutes long, and is what CI itself runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

from attnport.engines.kinds import KINDS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def _blocks() -> list[tuple[str, str]]:
    found = re.findall(
        r"^```(\S*)\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found
    assert {kind for kind, _ in found} <= {"sh", "python"}, (
        "no block stands there without being run"
    )
    return found


def _run(kind: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    programs = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    script = folder / f"block.{kind}"
    script.write_text(text, "utf-8")
    command = ["bash", "-euo", "pipefail"] if kind == "sh" else [sys.executable, "-W", "error"]
    return subprocess.run(
        [*command, script.name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# What stands in a block, and what running it has to show.
SHOWN = (
    ("python -m attnport.export", "_gemm_mha_v2"),
    ("attnport build build/mine", "became one MatMul"),
    ("attnport build build/mine", "_gemm_mha_v2"),
    ("attnport build build/mine", "proved: Yes."),
    ("import attnport", "attn0 _gemm_mha_v2"),
    ("import attnport", "\nproved\n(1, 5, 64)\n"),
    ("attnport generate", "proved: Yes."),
    ("attnport generate", " 0 of caches"),
    ("attnport shard", "proved: Yes."),
    ("attnport doctor", "tensorrt-rtx"),
    ("attnport inspect", "attn0"),
    ("attnport fuse", "became the Attention operator"),
    ("require.yaml", "proved: Yes."),
    ("attnport serve", "proved: Yes."),
)


# One test, and not one for each block: the later blocks need what the earlier ones made.
def test_every_block_runs_and_shows_what_it_is_there_for(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    printed = {}
    # The page has one fixed port, which two runs of the tests on a machine would both take.
    with FileLock(Path(tempfile.gettempdir()) / "attnport-readme.lock"):
        for kind, text in _blocks():
            if text.startswith("make "):
                continue
            done = _run(kind, text, tmp_path)
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            printed[text] = done.stdout
    for words, shown in SHOWN:
        (output,) = [output for text, output in printed.items() if words in text]
        assert shown in output


def test_make_has_the_targets() -> None:
    (commands,) = [text for _, text in _blocks() if text.startswith("make ")]
    targets = re.findall(r"^make (\S+)", commands, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_table_of_engines_is_that_of_doctor() -> None:
    table = README.read_text("utf-8").partition("## The engines\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\S+)` \| ([^|]+) \|", table, re.MULTILINE))
    assert rows == {name: kind.summary for name, kind in KINDS.items()}


def test_commands_in_the_text_exist() -> None:
    from attnport.cli.app import app

    known = {command.name for command in app.registered_commands}
    named = set(re.findall(r"`attnport ([a-z]+)", README.read_text("utf-8")))
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text("utf-8"))
               if not (page.parent / link).exists()]  # fmt: skip
    assert not missing
