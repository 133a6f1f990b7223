"""SHA-256 of files, remembered between runs by size, modification time and inode.

Hashing the weights of a large model takes seconds, and every command wants to know that its files
are the ones it thinks they are. A digest is believed while size, inode and both times of a file
stay as they were when it was read; `again=True` (`--verify`) reads the file once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

# A file that was written this shortly before it was hashed could be written again within the same
# tick of the file system's clock (up to 2 s, on FAT): its digest is not remembered.
_SETTLED_SECONDS = 2.0
_TIMEOUT_SECONDS = 2.0
_FOLDER_VARIABLE = "ATTNPORT_CACHE_DIR"

_Identity = tuple[int, int, int, int, int]

_CREATE = (
    "CREATE TABLE IF NOT EXISTS digests (device INTEGER, inode INTEGER, size INTEGER, "
    "modified INTEGER, changed INTEGER, sha256 TEXT, PRIMARY KEY (device, inode))"
)
_SELECT = (
    "SELECT sha256 FROM digests WHERE device=? AND inode=? AND size=? AND modified=? AND changed=?"
)


def user_cache() -> Path:
    """The folder for what may be lost at any time: ATTNPORT_CACHE_DIR, or the system's own."""
    given = os.environ.get(_FOLDER_VARIABLE)
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("attnport", appauthor=False))


def file_sha256(path: Path) -> str:
    """Reads a file and hashes it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remembered_sha256(path: Path, *, again: bool = False) -> str:
    """The hash of a file, without reading it where it did not change since the last time.

    Args:
        path: The file.
        again: Whether to read it whatever is remembered.

    Raises:
        OSError: If it cannot be read. That nothing can be remembered is no error.
    """
    before = _identity(path)
    found = None if again else _recall(before)
    if found is not None:
        return found
    digest = file_sha256(path)
    if _identity(path) == before and _is_settled(before):
        _remember(before, digest)
    return digest


def _identity(path: Path) -> _Identity:
    stat = path.stat()
    # SQLite holds signed numbers of 64 bits; some file systems have larger inodes.
    inode = stat.st_ino - (1 << 64) if stat.st_ino >= 1 << 63 else stat.st_ino
    return stat.st_dev, inode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _is_settled(identity: _Identity) -> bool:
    return time.time() - max(identity[3:]) / 1e9 > _SETTLED_SECONDS


def _recall(identity: _Identity) -> str | None:
    # A memory that is missing, damaged or locked is none: the file is hashed.
    with contextlib.suppress(OSError, sqlite3.Error), _memory() as memory:
        row = memory.execute(_SELECT, identity).fetchone()
        return None if row is None else str(row[0])
    return None


def _remember(identity: _Identity, digest: str) -> None:
    with contextlib.suppress(OSError, sqlite3.Error), _memory() as memory:
        memory.execute("REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?)", (*identity, digest))
        memory.commit()


@contextlib.contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    folder = user_cache()
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(folder / "digests.sqlite3", timeout=_TIMEOUT_SECONDS)
    try:
        connection.execute("PRAGMA synchronous=OFF")  # what is lost is hashed again
        connection.execute(_CREATE)
        yield connection
    finally:
        connection.close()
