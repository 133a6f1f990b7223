"""Which code a row was measured with, so that a run goes on where another one stopped."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from benchmarks.zoo.setting import this_setting

import attnport

# What decides a row: the rooms that export, build and prove, and how the zoo looks at them. The
# expectations are no part of it, since they are compared with a row when the scoreboard is written.
_ROOMS = ("export", "engines", "validate")
_ZOO = ("architecture.py", "measure.py", "regions.py", "stock.py", "wrappers.py")


@cache
def code_version() -> str:
    """A digest of the code and of the versions of what it stands on: twelve hexadecimal digits."""
    package = Path(attnport.__file__).parent
    files = [file for room in _ROOMS for file in (package / room).rglob("*.py")]
    files += [package / "axes.py", package / "errors.py"]
    files += [Path(__file__).with_name(name) for name in _ZOO]
    digest = hashlib.sha256(json.dumps(this_setting(), sort_keys=True).encode())
    for file in sorted(files, key=lambda file: (file.parent.name, file.name)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
