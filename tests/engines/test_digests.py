"""A digest is remembered while nothing about the file changed, and a memory may be lost."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from attnport.export import digests
from attnport.export.digests import remembered_sha256, user_cache


def settled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is an hour ahead, so that files just written have settled."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    hash_it = digests.file_sha256

    def watched(path: Path) -> str:
        read.append(path)
        return hash_it(path)

    monkeypatch.setattr(digests, "file_sha256", watched)
    return read


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = settled(tmp_path / "a", b"one"), count_reads(monkeypatch)
    assert remembered_sha256(file) == remembered_sha256(file) == sha(b"one")
    assert len(read) == 1
    assert remembered_sha256(file, again=True) == sha(b"one")
    assert len(read) == 2


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("change", ["size", "time", "inode"])
def test_a_changed_file_is_read_again(tmp_path: Path, change: str) -> None:
    file = settled(tmp_path / "a", b"one")
    remembered_sha256(file)
    before = file.stat()
    if change == "size":
        file.write_bytes(b"other")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        file.write_bytes(b"two")
    else:
        other = settled(tmp_path / "b", b"two")
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(file)
    assert remembered_sha256(file) == sha(file.read_bytes()) != sha(b"one")


def test_a_file_that_was_just_written_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be written again within one tick of the file system's clock."""
    file, read = settled(tmp_path / "a", b"one"), count_reads(monkeypatch)
    remembered_sha256(file)
    remembered_sha256(file)
    assert len(read) == 2


@pytest.mark.usefixtures("later")
def test_a_lost_memory_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = settled(tmp_path / "a", b"one")
    remembered_sha256(file)
    (user_cache() / "digests.sqlite3").write_bytes(b"no database" * 100)
    assert remembered_sha256(file) == sha(b"one")
    monkeypatch.setenv("ATTNPORT_CACHE_DIR", str(file / "not a folder"))
    assert remembered_sha256(file) == sha(b"one")


def test_the_users_own_cache_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNPORT_CACHE_DIR")
    assert user_cache().name == "attnport"
