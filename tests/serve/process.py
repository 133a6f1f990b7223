"""`attnport serve` as a process of its own, and clients that ask it without pause."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PATIENCE_SECONDS = 60


@dataclass
class ServeProcess:
    """A running `attnport serve`.

    Attributes:
        process: It.
        port: Where it listens.
        log: Its structured log, a file.
    """

    process: subprocess.Popen[str]
    port: int
    log: Path

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextmanager
def serve_process(folder: Path, *words: str) -> Iterator[ServeProcess]:
    """Starts it on a free port and waits until its models are ready or not."""
    log = folder / "serve.log"
    command = [sys.executable, "-m", "attnport", "serve", *words, "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first.startswith("listening on "), first + log.read_text("utf-8")
        state = process.stdout.readline()
        assert state.startswith("ready: "), state
        yield ServeProcess(process, int(first.rsplit(":", 1)[1]), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


@dataclass
class Client:
    """Asks `y = x` without pause on one connection, and checks that what comes back is its own.

    Attributes:
        answered: The ids of the requests that got their result.
        unanswered: The ids of those that got none: the connection was closed before a byte came.
        wrong: What should not have come.
    """

    number: int
    port: int
    path: str
    width: int
    answered: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        count = 0
        while not self.stop.is_set():
            count += 1
            if not self._ask(connection, f"c{self.number}-{count}", count):
                break
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, name: str, count: int) -> bool:
        x = np.full((1 + count % 2, 1, self.width), self.number * 1e6 + count, np.float32)
        tensor = {
            "name": "x",
            "shape": list(x.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": x.nbytes},
        }
        content = {"id": name, "inputs": [tensor], "parameters": {"binary_data_output": True}}
        head = json.dumps(content).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "X-Request-Id": name}
        try:
            connection.request("POST", self.path, head + x.tobytes(), headers)
            response = connection.getresponse()
            body = response.read()
        except (ConnectionError, http.client.HTTPException, OSError) as err:
            connection.close()
            if isinstance(err, http.client.IncompleteRead):
                self.wrong.append(f"{name}: half an answer")
            self.unanswered.add(name)
            return not isinstance(err, ConnectionRefusedError)
        length = int(response.headers.get("Inference-Header-Content-Length", 0))
        if response.status != 200 or json.loads(body[:length])["id"] != name:
            self.wrong.append(f"{name}: {response.status} {body[:200]!r}")
        elif body[length:] != x.tobytes():
            self.wrong.append(f"{name}: another one's numbers")
        self.answered.add(name)
        return True


@contextmanager
def clients(count: int, port: int, path: str, width: int) -> Iterator[list[Client]]:
    """Clients that ask while the block runs, and afterwards until they are refused."""
    made = [Client(number, port, path, width) for number in range(count)]
    threads = [threading.Thread(target=client) for client in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for client in made:
            client.stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a client hangs"
