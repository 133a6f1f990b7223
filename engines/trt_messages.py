"""TensorRT's own words while it builds: every message, and how far it is.

Classes of these two interfaces can only be made once the library is loaded, so functions make them.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

from attnport.engines.layer_table import TABLE_HEADER

_PARSING = "Parsing node: "
# TensorRT asks CUDA about things that a build without a device does not need.
_NO_DEVICE = "CUDA driver version is insufficient"


def make_logger(trt: Any) -> Any:
    """A logger that writes every message to stderr and keeps what the result needs."""

    class Logger(trt.ILogger):  # type: ignore[misc]  # a class of a library without types
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.tables: list[str] = []
            self.errors: list[str] = []
            self.warnings: list[str] = []
            self.last_node = ""

        def log(self, severity: Any, message: str) -> None:
            sys.stderr.write(f"[{severity.name}] {message}\n")
            if message.startswith(TABLE_HEADER):
                self.tables.append(message)
            elif message.startswith(_PARSING):
                self.last_node = message.removeprefix(_PARSING)
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(message)
            elif (
                severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
                and _NO_DEVICE not in message
            ):
                self.errors.append(message)

    return Logger()


def make_monitor(trt: Any, progress: TextIO, cancelled: threading.Event) -> Any:
    """A monitor that writes `fraction<TAB>phase` for the phases that have no parent phase.

    Args:
        trt: The library.
        progress: Where to write to.
        cancelled: When it is set, the next step ends the build.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # a class of a library without types
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            if parent is None:
                self.steps[name] = max(num_steps, 1)

        def step_complete(self, name: str, step: int) -> bool:
            if name in self.steps:
                progress.write(f"{(step + 1) / self.steps[name]:.3f}\t{name}\n")
            return not cancelled.is_set()

        def phase_finish(self, name: str) -> None:
            self.steps.pop(name, None)

    return Monitor()
