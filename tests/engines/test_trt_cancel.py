"""Ctrl-C ends a build in order: TensorRT stops, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from attnport.engines import trt_process
from attnport.engines.build import build_engine
from attnport.export.bundle import Bundle

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
BundleMaker = Callable[..., Bundle]
FILES = {"model.onnx", "bundle.json"}


def test_tensorrt_is_asked_to_stop_and_does(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = attention_bundle()
    codes: list[int] = []
    cancel = trt_process._cancel

    def watched(child: subprocess.Popen[bytes]) -> None:
        cancel(child)
        codes.append(child.wait())

    def interrupt(phase: str, fraction: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trt_process, "_cancel", watched)
    with pytest.raises(KeyboardInterrupt):
        build_engine(bundle, "tensorrt-rtx", progress=interrupt)
    assert codes == [0]  # it ended by itself, and was not killed
    assert {path.name for path in bundle.path.iterdir()} == FILES


def test_ctrl_c_of_a_terminal_reaches_both(attention_bundle: BundleMaker) -> None:
    """A terminal sends SIGINT to every process of the group, the builder's child included."""
    bundle = attention_bundle()
    code = (
        "import os, signal, sys\n"
        "from attnport.engines.build import build_engine\n"
        "from attnport.export.bundle import Bundle\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job may ignore it
        "bundle = Bundle.load(sys.argv[1])\n"
        "interrupt = lambda *_: os.killpg(0, signal.SIGINT)\n"
        "build_engine(bundle, 'tensorrt-rtx', progress=interrupt)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(bundle.path)],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    deadline = time.monotonic() + 20
    while {path.name for path in bundle.path.iterdir()} != FILES and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {path.name for path in bundle.path.iterdir()} == FILES
