"""Attention from PyTorch to ONNX and TensorRT, with proof that it arrived.

The public API is what `__all__` names. Each name is imported at its first use, so that a machine
that only verifies or serves needs no torch, and `attnport --help` answers at once.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from attnport._version import __version__
from attnport.axes import Axis
from attnport.errors import AttnportError

if TYPE_CHECKING:
    from attnport.api import build_engine, export_module, open_decoding, open_engine, prove
    from attnport.engines.engine import Engine
    from attnport.engines.plan import EnginePlan
    from attnport.export.bundle import Bundle
    from attnport.validate.report import Report

__all__ = [
    "AttnportError",
    "Axis",
    "Bundle",
    "Engine",
    "EnginePlan",
    "Report",
    "__version__",
    "build_engine",
    "export_module",
    "open_decoding",
    "open_engine",
    "prove",
]

_HOME = {
    "Bundle": "attnport.export.bundle",
    "Engine": "attnport.engines.engine",
    "EnginePlan": "attnport.engines.plan",
    "Report": "attnport.validate.report",
    "build_engine": "attnport.api",
    "export_module": "attnport.api",
    "open_decoding": "attnport.api",
    "open_engine": "attnport.api",
    "prove": "attnport.api",
}

_ROOMS = ("models", "export", "engines", "validate", "serve")


def _require_linked_rooms(package: Path) -> None:
    """Says what happened where the links to the rooms became text files.

    A zip of the repository unpacked on Windows, or git with core.symlinks=false, leaves a small
    file that holds the link's target; importing a room would then fail with no hint.
    """
    broken = [room for room in _ROOMS if (package / room).is_file()]
    if broken:
        raise ImportError(
            f"this checkout of attnport holds {', '.join(broken)} as text files where links to the "
            "folders at the repository's top belong: clone it with `git clone -c core.symlinks=true`"
            ", or install the wheel (`pip install .` on a system with links builds one)"
        )


_require_linked_rooms(Path(__file__).parent)


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'attnport' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
