"""Opens sessions of ONNX Runtime in a child process first, since some graphs kill the process.

One child serves all graphs of this process, so that a graph costs a session and not a start of
Python. That a graph opened is remembered in the user's cache, by its hash and onnxruntime's
version: it is not tried again.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from attnport.engines import libraries
from attnport.engines.child_process import child_environment, python_module
from attnport.errors import GraphError
from attnport.export.digests import remembered_sha256, user_cache


@dataclass(frozen=True)
class Answer:
    """What came of opening a session in the child.

    Attributes:
        providers: Those that the session uses, first of all the one asked for; () without one.
        error: onnxruntime's exception, its first line; "" where there is none.
        messages: What it wrote to stderr.
        died: The name of the signal, or the exit status, that ended the child; "" where it lives.
    """

    providers: tuple[str, ...] = ()
    error: str = ""
    messages: str = ""
    died: str = ""


class _Child:
    """The child process, and what it writes to stderr."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        self.process = subprocess.Popen(
            python_module("attnport.engines.ort_probe_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            env=child_environment(),
        )

    def ask(self, question: Mapping[str, object]) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before = self.messages.seek(0, os.SEEK_END)
        line = b""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        self.messages.seek(before)
        messages = self.messages.read().decode("utf-8", "replace")
        if not line:
            return Answer(messages=messages, died=_death(self.process.wait()))
        answer = json.loads(line)
        return Answer(tuple(answer["providers"]), answer["error"], messages)

    def close(self) -> None:
        if self.owner == os.getpid():  # not in a copy of the process that was forked off
            self.process.kill()
            self.process.communicate()
        self.messages.close()


_lock = threading.Lock()
_child: _Child | None = None


def ask_child(question: Mapping[str, object]) -> Answer:
    """Has the child open a session.

    Args:
        question: For `attnport.engines.ort_probe_child`.
    """
    global _child
    with _lock:
        if _child is None or _child.owner != os.getpid():
            _child = _Child()
        answer = _child.ask(question)
        if answer.died:
            _child.close()
            _child = None
        return answer


@atexit.register
def _end_child() -> None:
    global _child
    if _child is not None:
        _child.close()
        _child = None


def require_survivable(
    model: Path, content: bytes | None, provider: str, disabled: list[str]
) -> None:
    """Opens a graph in the child, unless it was opened before on this machine.

    An exception there is no matter: the same will be raised here, and said.

    Args:
        model: The file.
        content: The graph in its place, whose weights lie beside the file; None for the file.
        provider: The provider.
        disabled: The optimizers that the session does without.

    Raises:
        GraphError: If onnxruntime died of it.
    """
    mark = user_cache() / "opened" / _key(model, content, provider, disabled)
    if mark.exists():
        return
    question = {"model": str(model.resolve()), "provider": provider, "disabled": disabled}
    with _as_file(content) as path:
        answer = ask_child(question | ({"content": path} if path else {}))
    if answer.died:
        raise GraphError(
            f"onnxruntime {libraries.version('onnxruntime')} died of {answer.died} while it opened "
            f"{model} in a trial process: this graph cannot be run with it; export in another "
            "dtype or form, or use another engine"
        )
    with contextlib.suppress(OSError):  # what cannot be remembered is tried again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _key(model: Path, content: bytes | None, provider: str, disabled: list[str]) -> str:
    parts: list[object] = [libraries.version("onnxruntime"), provider, disabled]
    parts += [remembered_sha256(file) for file in sorted(model.parent.glob(model.name + "*"))]
    if content is not None:
        parts.append(hashlib.sha256(content).hexdigest())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextlib.contextmanager
def _as_file(content: bytes | None) -> Iterator[str]:
    if content is None:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="attnport-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        yield str(path)


def _death(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
