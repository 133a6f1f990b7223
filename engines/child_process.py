"""The environment of child processes: they find the same attnport as this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter.

    -P: the current folder must not put its own modules in the way.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment with the import path of this process, for an attnport that is not installed."""
    import attnport

    home = str(Path(attnport.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([home, path] if path else [home])}
