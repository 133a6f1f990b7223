"""Runs the process that builds: hands its progress on, and ends it when the user has enough."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from attnport.engines.child_process import child_environment, python_module
from attnport.engines.trt_request import CANCEL, LOG, REQUEST, RESULT, BuildRequest, BuildResult

Progress = Callable[[str, float], None]

# TensorRT looks at whether it is cancelled between its steps, and one step may be long.
_CANCEL_SECONDS = 5.0


def run_builder(
    request: BuildRequest, folder: Path, progress: Progress
) -> tuple[int, BuildResult | None]:
    """Builds in a child process, which leaves its files in the folder.

    Args:
        request: What to build.
        folder: An empty one, for the two processes alone.
        progress: Called with what TensorRT does and the fraction that is done.

    Returns:
        The child's exit status, and its result where it lived to give one.
    """
    (folder / REQUEST).write_text(request.model_dump_json(), "utf-8")
    with (folder / LOG).open("wb") as log:
        # The child keeps reading stdin: its end is how it learns that this process is gone.
        child = subprocess.Popen(
            python_module("attnport.engines.trt_child", str(folder / REQUEST)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=child_environment(),
        )
    with child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                fraction, _, phase = line.decode("utf-8").rstrip("\n").partition("\t")
                progress(phase, float(fraction))
            code = child.wait()
        except BaseException:
            _cancel(child)
            raise
    if code != 0:
        return code, None
    return code, BuildResult.model_validate_json((folder / RESULT).read_text("utf-8"))


def _cancel(child: subprocess.Popen[bytes]) -> None:
    """Asks TensorRT to stop, which frees what it holds in order; kills it where it does not."""
    assert child.stdin is not None
    with contextlib.suppress(OSError):  # it may have ended by itself
        child.stdin.write(CANCEL)
        child.stdin.flush()
    try:
        # Its end is awaited without reading its progress, which is less than a pipe holds.
        child.wait(_CANCEL_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
