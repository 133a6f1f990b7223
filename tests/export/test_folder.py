"""A folder appears whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attnport.errors import UsageError
from attnport.export.bundle import MANIFEST
from attnport.export.folder import new_folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write_bundle(out: Path, content: str) -> None:
    with new_folder(out) as folder:
        (folder / MANIFEST).write_text(content)
        (folder / f"{content}.txt").write_text(content)


def test_it_appears_when_the_block_ends(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "down" / "bundle"
    with new_folder(out) as folder:
        (folder / "file.txt").write_text("whole")
        assert not out.exists()
        assert folder.parent == out.parent
    assert names(out) == {"file.txt"}
    assert names(out.parent) == {"bundle"}
    assert stat.S_IMODE(out.stat().st_mode) == 0o755


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "bundle") as folder:
            (folder / "half.txt").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == set()


def test_an_earlier_bundle_is_replaced(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", "first")
    write_bundle(tmp_path / "bundle", "second")
    assert names(tmp_path) == {"bundle"}
    assert names(tmp_path / "bundle") == {MANIFEST, "second.txt"}


def test_an_earlier_bundle_stays_where_a_new_one_fails(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", "first")
    with pytest.raises(RuntimeError), new_folder(tmp_path / "bundle"):
        raise RuntimeError
    assert names(tmp_path) == {"bundle"}
    assert names(tmp_path / "bundle") == {MANIFEST, "first.txt"}


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    write_bundle(tmp_path / "bundle", "first")
    assert names(tmp_path / "bundle") == {MANIFEST, "first.txt"}


def test_a_folder_of_other_files_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match=r"holds other files.*give a new folder"):
        write_bundle(tmp_path / "bundle", "first")
    assert names(tmp_path) == {"bundle"}
    assert names(tmp_path / "bundle") == {"thesis.txt"}


def test_a_file_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("precious")
    with pytest.raises(UsageError, match="is a file"):
        write_bundle(tmp_path / "bundle", "first")
    assert (tmp_path / "bundle").read_text() == "precious"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written.*give another"):
        write_bundle(tmp_path / "file" / "bundle", "first")


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_bundle(Path("bundle"), "first")
    assert names(tmp_path / "bundle") == {MANIFEST, "first.txt"}


def test_a_link_to_a_folder_stays_a_place_for_bundles(tmp_path: Path) -> None:
    """What the link pointed at is not lost, and the new bundle is found under the name."""
    write_bundle(tmp_path / "real", "first")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_bundle(tmp_path / "link", "second")
    assert names(tmp_path / "link") == {MANIFEST, "second.txt"}


KILLED = """
import os, pathlib, signal, sys
from attnport.export import folder
if sys.argv[2] == "moved":  # after the earlier bundle was moved aside, before the new one is there
    folder.shutil.rmtree = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
    def rename(self, target):
        if "-old" in str(target):
            os.rename(self, target)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    pathlib.Path.rename = rename
with folder.new_folder(sys.argv[1]) as work:
    (work / "half.txt").write_text("half")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no SIGKILL")
@pytest.mark.parametrize("when", ["writing", "moved"])
def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path: Path, when: str) -> None:
    out = tmp_path / "bundle"
    write_bundle(out, "first")
    done = subprocess.run([sys.executable, "-c", KILLED, str(out), when], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2  # what was being written, and the earlier one wherever it is
    with new_folder(out):
        assert names(out) == {MANIFEST, "first.txt"}
    assert names(tmp_path) == {"bundle"}


def test_what_another_process_is_writing_is_left(tmp_path: Path) -> None:
    with new_folder(tmp_path / "bundle") as first:
        write_bundle(tmp_path / "bundle", "second")
        assert first.is_dir()
