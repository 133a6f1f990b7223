"""One build at a time for each plan, and nothing left of builds that were killed."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import socket
import subprocess
import sys
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

    It vanishes with this process, however that ends; what is left when the machine itself stopped
    is removed by the next build, so call it with the lock held.
    """
    prefix = f".{kind}.{socket.gethostname()}."
    for stale in out.glob(f"{prefix}*.building"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = out.resolve() / f"{prefix}{secrets.token_hex(8)}.building"
    with _removed_with_this_process(folder):  # before it is there: no moment is unguarded
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


# Waits for the end of its stdin, which is that of the process that holds the other end. TensorRT's
# process may still write for a moment: what it adds is removed again.
_REMOVER = """\
import shutil, sys, time
sys.stdin.buffer.read()
for _ in range(20):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(0.1)
"""


@contextlib.contextmanager
def _removed_with_this_process(folder: Path) -> Iterator[None]:
    """Has a small process remove the folder when this one ends, killed or not."""
    remover = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REMOVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what is sent to this process's group is not for it
    )
    try:
        yield
    finally:
        remover.kill()
        remover.communicate()


def _lock_folder() -> Path:
    folder = user_cache() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to
        folder = Path(tempfile.gettempdir()) / "attnport-locks"
        folder.mkdir(exist_ok=True)
    return folder
