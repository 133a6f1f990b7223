"""The process in which TensorRT builds: `python -m attnport.engines.trt_child REQUEST.json`.

A process of its own, because the builder was seen to die with a segmentation fault (TensorRT for
RTX 1.7.1, on two masks in a row). It writes the plan and the result beside the request, its
messages and TensorRT's own to stderr, and a line of progress at a time to stdout. When stdin ends
the parent is gone, and so is the wish for a plan.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from attnport.engines.layer_table import TABLE_HEADER
from attnport.engines.trt_request import PLAN, RESULT, BuildFailure, BuildRequest, BuildResult

_PARSING = "Parsing node: "
_MAX_ERRORS_SHOWN = 3


class _StoppedError(Exception):
    """Ends the build with a failure."""

    def __init__(self, failure: BuildFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def main(request_path: Path) -> None:
    progress = _private_stdout()
    _leave_with_the_parent(request_path.parent)
    request = BuildRequest.model_validate_json(request_path.read_text("utf-8"))
    trt = importlib.import_module(request.library)
    logger = _make_logger(trt)
    failure = None
    start = time.perf_counter()
    try:
        plan = _build(trt, logger, request, _make_monitor(trt, progress))
        with (request_path.parent / PLAN).open("wb") as stream:
            stream.write(memoryview(plan))
    except _StoppedError as stop:
        failure = stop.failure
    result = BuildResult(
        failure=failure,
        layer_tables=tuple(logger.tables),
        library_version=trt.__version__,
        build_seconds=time.perf_counter() - start,
        peak_memory_bytes=_peak_memory_bytes(),
    )
    (request_path.parent / RESULT).write_text(result.model_dump_json(), "utf-8")


def _private_stdout() -> TextIO:
    """Keeps stdout for progress alone, and sends whatever a library prints there to stderr."""
    progress = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return progress


def _leave_with_the_parent(folder: Path) -> None:
    def wait() -> None:
        # The descriptor, not sys.stdin: a daemon thread that holds sys.stdin's lock makes the
        # interpreter abort when it exits (CPython 3.11).
        while os.read(0, 1):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _make_logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]  # a class of a library without types
        """Writes every message to stderr and keeps what the result needs."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.tables: list[str] = []
            self.errors: list[str] = []
            self.last_node = ""

        def log(self, severity: Any, message: str) -> None:
            sys.stderr.write(f"[{severity.name}] {message}\n")
            if message.startswith(TABLE_HEADER):
                self.tables.append(message)
            elif message.startswith(_PARSING):
                self.last_node = message.removeprefix(_PARSING)
            elif severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)

    return Logger()


def _make_monitor(trt: Any, progress: TextIO) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # a class of a library without types
        """Writes `fraction<TAB>phase` for the steps of the phases that have no parent phase."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            if parent is None:
                self.steps[name] = max(num_steps, 1)

        def step_complete(self, name: str, step: int) -> bool:
            if name in self.steps:
                progress.write(f"{(step + 1) / self.steps[name]:.3f}\t{name}\n")
            return True

        def phase_finish(self, name: str) -> None:
            self.steps.pop(name, None)

    return Monitor()


def _build(trt: Any, logger: Any, request: BuildRequest, monitor: Any) -> Any:
    builder = trt.Builder(logger)
    # Precision is the graph's in every version that this supports: since TensorRT 11, and in
    # TensorRT for RTX, it is so without the flag too.
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(request.model_path)):
        raise _StoppedError(_parse_failure(parser, logger))
    _allow_decomposition(trt, network)
    config = builder.create_builder_config()
    # Only DETAILED makes the builder log its table of layers.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.progress_monitor = monitor
    for index, ranges in enumerate(request.profiles):
        profile = builder.create_optimization_profile()
        for name, shape in ranges.items():
            profile.set_shape(name, shape.min, shape.opt, shape.max)
        # -1 is all that says so where a profile is refused (TensorRT for RTX 1.7.1).
        if config.add_optimization_profile(profile) == -1:
            message = _reasons(logger, f"profile {index} is refused, without a reason")
            raise _StoppedError(BuildFailure(stage="profile", message=message))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise _StoppedError(
            BuildFailure(stage="build", message=_reasons(logger, "no reason was given"))
        )
    return plan


def _parse_failure(parser: Any, logger: Any) -> BuildFailure:
    if parser.num_errors == 0:
        return BuildFailure(stage="parse", message=_reasons(logger, "no reason was given"))
    error = parser.get_error(0)
    node, operator = error.node_name(), error.node_operator()
    if not node:
        # Errors found in the parser's helpers name no node; the last one that it began is it.
        node, _, rest = logger.last_node.partition(" [")
        operator = rest.rstrip("]")
    return BuildFailure(stage="parse", message=error.desc(), node=node, operator=operator)


def _reasons(logger: Any, otherwise: str) -> str:
    return "; ".join(logger.errors[:_MAX_ERRORS_SHOWN]) or otherwise


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Lets attentions that no fused kernel takes be built from simpler kernels.

    Otherwise TensorRT refuses `Attention` in fp32 and with head sizes out of 9..256. A layer comes
    back from the network as a plain ILayer; changing its class is what gives its attention
    (TensorRT for RTX 1.7.1). The ONNX attribute TRT_decomposable would do it too, and make the
    file unreadable for onnx.checker and ONNX Runtime.
    """
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    if kind is None:
        return
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == kind:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


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
