"""The process in which TensorRT builds: `python -m attnport.engines.trt_child REQUEST.json`.

A process of its own, because the builder was seen to die with a segmentation fault (TensorRT for
RTX 1.7.1, on two masks in a row). It writes the plan and the result beside the request, its
messages and TensorRT's own to stderr, and a line of progress at a time to stdout. A "c" on stdin
cancels the build; when stdin ends the parent is gone, and so is the wish for a plan.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from attnport.engines.trt_messages import make_logger, make_monitor
from attnport.engines.trt_network import StoppedError, build_plan, inspect_plan
from attnport.engines.trt_request import CANCEL, PLAN, RESULT, BuildRequest, BuildResult


def main(request_path: Path) -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress = _private_stdout()
    cancelled = threading.Event()
    _listen_to_parent(request_path.parent, cancelled)
    request = BuildRequest.model_validate_json(request_path.read_text("utf-8"))
    trt = importlib.import_module(request.library)
    logger = make_logger(trt)
    failure, digest = None, ""
    inspections: tuple[str, ...] = ()
    start = time.perf_counter()
    try:
        plan = build_plan(trt, logger, request, make_monitor(trt, progress, cancelled))
        build_seconds = time.perf_counter() - start
        digest = _write_plan(plan, request_path.parent / PLAN)
        if not logger.tables:
            inspections = _inspections(trt, logger, plan)
    except StoppedError as stop:
        build_seconds = time.perf_counter() - start
        failure = stop.failure
    result = BuildResult(
        failure=failure,
        layer_tables=tuple(logger.tables),
        inspections=inspections,
        library_version=trt.__version__,
        build_seconds=build_seconds,
        peak_memory_bytes=_peak_memory_bytes(),
        plan_sha256=digest,
    )
    (request_path.parent / RESULT).write_text(result.model_dump_json(), "utf-8")


def _write_plan(plan: Any, path: Path) -> str:
    """Writes TensorRT's memory to the file as it is, and gives its hash."""
    content = memoryview(plan).cast("B")
    with path.open("wb", buffering=0) as stream:
        written = 0
        while written < len(content):  # one write takes 2 GiB at most, on Linux
            written += stream.write(content[written:])
    return hashlib.sha256(content).hexdigest()


def _inspections(trt: Any, logger: Any, plan: Any) -> tuple[str, ...]:
    from attnport.engines.devices import cuda_devices

    return inspect_plan(trt, logger, plan) if cuda_devices() else ()


def _private_stdout() -> TextIO:
    """Keeps stdout for progress alone, and sends whatever a library prints there to stderr."""
    progress = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return progress


def _listen_to_parent(folder: Path, cancelled: threading.Event) -> None:
    def listen() -> None:
        # The descriptor, not sys.stdin: a daemon thread that holds sys.stdin's lock makes the
        # interpreter abort when it exits (CPython 3.11).
        while word := os.read(0, 1):
            if word == CANCEL:
                cancelled.set()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()


def _peak_memory_bytes() -> int | None:
    """The peak resident memory of this process, from Linux.

    Not resource.getrusage: its ru_maxrss starts at the parent's peak, kept across exec.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
