"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnport.errors import UsageError
from attnport.export.bundle import MANIFEST


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
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent.resolve()))
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
    aside = work.with_name(f"{work.name}-old")
    if target.exists():
        target.rename(aside)
    work.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
