"""A folder that appears whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from attnport.errors import UsageError
from attnport.export.bundle import MANIFEST

_ASIDE = "-old"  # the ending of an earlier bundle that makes room for the new one


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place when the block ends without an error.

    An earlier bundle there is replaced; anything else is left alone and refused.

    Raises:
        UsageError: If `out` is a file, or a folder that holds something else than a bundle.
    """
    target = Path(out)
    _require_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_what_was_killed(target)
        work = target.parent.resolve() / f"{_prefix(target)}{os.getpid()}.{secrets.token_hex(4)}"
        work.mkdir(mode=0o700)
    except OSError as err:
        raise UsageError(
            f"{target} cannot be written ({err.strerror}): give another --out"
        ) from err
    try:
        yield work
        work.chmod(0o755)
        _replace(target, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _prefix(target: Path) -> str:
    """Of hidden folders of this machine: on another one a process may be at work that none sees."""
    return f".{target.name}.{socket.gethostname()}."


def _clear_what_was_killed(target: Path) -> None:
    """Removes folders of processes that were killed, or brings back the bundle that one moved."""
    prefix = _prefix(target)
    for left in list(target.parent.glob(f"{glob.escape(prefix)}*")):
        owner = left.name.removeprefix(prefix).partition(".")[0]
        if not owner.isdecimal() or psutil.pid_exists(int(owner)):
            continue
        if left.name.endswith(_ASIDE) and not target.exists():
            left.rename(target)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _require_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if target.is_dir() and ((target / MANIFEST).is_file() or not any(target.iterdir())):
        return
    what = "holds other files" if target.is_dir() else "is a file"
    raise UsageError(
        f"{target} {what}, which export does not overwrite: give a new folder as --out"
    )


def _replace(target: Path, work: Path) -> None:
    """Moves an earlier folder aside first: a folder cannot be replaced in one step."""
    aside = work.with_name(f"{work.name}{_ASIDE}")
    if target.exists():
        target.rename(aside)
    work.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
