"""One build at a time for each plan, and nothing left of builds that were killed."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from attnport.export.digests import user_cache

_POLL_SECONDS = 0.1


@contextlib.contextmanager
def build_lock(plan: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the right to write a plan; the system frees it when the process ends, killed or not.

    The lock lies in the user's cache folder, so that none is left beside the plan. Between machines
    that share a folder it does not hold: there the plan's hash in its record tells a mixture.

    Args:
        plan: The plan's path.
        waiting: Called once, if another process holds it.
    """
    name = hashlib.sha256(str(plan.resolve()).encode()).hexdigest()[:32]
    lock = filelock.FileLock(_lock_folder() / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire(poll_interval=_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def build_folder(out: Path, kind: str) -> Iterator[Path]:
    """A hidden folder beside the result, on the same disk so that files can be renamed into place.

    What a killed build of this machine left is removed; call it with the lock held.
    """
    prefix = f".{kind}.{socket.gethostname()}."
    for stale in out.glob(f"{prefix}*.building"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=".building", dir=out.resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lock_folder() -> Path:
    folder = user_cache() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to
        folder = Path(tempfile.gettempdir()) / "attnport-locks"
        folder.mkdir(exist_ok=True)
    return folder
