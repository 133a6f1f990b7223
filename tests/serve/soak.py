"""A long load with bad clients: nothing is lost or mixed up, and nothing grows.

python -m tests.serve.soak --seconds 120, or `make soak-serve`. Eight clients ask without a pause and
check that what comes back is theirs. Beside them about one request in a hundred is malformed, is
left before its end or before its answer, or comes a few bytes at a time.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import theilslopes  # type: ignore[import-untyped]
from tests.serve.bundles import WIDTH, identity_bundle
from tests.serve.process import Client, clients, serve_process

INFER = "/v2/models/identity/infer"
GOOD_CLIENTS = 8
BAD_SHARE = 0.01
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 1, 8], "datatype": "FP32", "data": [1.0] * 8}]}
).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True)
class Sample:
    """Of the server: when, resident bytes, descriptors, threads."""

    seconds: float
    rss_bytes: int
    descriptors: int
    threads: int


@dataclass
class SoakResult:
    """What a soak gave.

    Attributes:
        answered: Good requests that got their own result.
        bad: Bad requests that were sent, by kind.
        wrong: What should not have happened; empty where all is well.
        samples: Of the server while it ran.
        idle: Of the server before the load and after it.
    """

    answered: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    idle: list[Sample] = field(default_factory=list)

    def growth(self) -> tuple[float, float]:
        """Bytes of memory for each second, as a 95% interval, once the first third is over."""
        late = self.samples[len(self.samples) // 3 :]
        seconds, sizes = [s.seconds for s in late], [s.rss_bytes for s in late]
        found = theilslopes(sizes, seconds)
        return float(found.low_slope), float(found.high_slope)


class BadClient:
    """Sends what good clients do not, as often as its share of all requests says."""

    def __init__(self, port: int, good: list[Client], result: SoakResult) -> None:
        self.port, self.good, self.result = port, good, result
        self.stop = threading.Event()
        self._choose = random.Random(0)
        self._slow: list[threading.Thread] = []

    def __call__(self) -> None:
        kinds = [
            self._malformed,
            self._wrong_shape,
            self._leaves_in_the_body,
            self._leaves_before_the_answer,
            self._half_a_head,
            self._slow_body,
            self._noise,
        ]
        while not self.stop.is_set():
            sent = sum(self.result.bad.values())
            if sent >= BAD_SHARE * sum(len(client.answered) for client in self.good):
                time.sleep(0.005)
                continue
            kind = self._choose.choice(kinds)
            name = kind.__name__.strip("_")
            self.result.bad[name] = self.result.bad.get(name, 0) + 1
            kind()
        for thread in self._slow:
            thread.join()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def _expect(self, data: bytes, status: bytes) -> None:
        with self._connect() as connection:
            connection.sendall(data)
            answer = connection.recv(65536)
            if not answer.startswith(b"HTTP/1.1 " + status):
                self.result.wrong.append(f"{data[:60]!r} got {answer[:60]!r}")

    def _malformed(self) -> None:
        self._expect(HEAD % (INFER.encode(), 5) + b'{"in"', b"400")

    def _wrong_shape(self) -> None:
        body = BODY.replace(b"[1, 1, 8]", b"[1, 1, 9]")
        self._expect(HEAD % (INFER.encode(), len(body)) + body, b"400")

    def _noise(self) -> None:
        self._expect(self._choose.randbytes(40) + b"\r\n\r\n", b"400")

    def _leaves_in_the_body(self) -> None:
        with self._connect() as connection:
            connection.sendall(HEAD % (INFER.encode(), len(BODY)) + BODY[:-5])

    def _leaves_before_the_answer(self) -> None:
        with self._connect() as connection:
            connection.sendall(HEAD % (INFER.encode(), len(BODY)) + BODY)

    def _half_a_head(self) -> None:
        with self._connect() as connection:
            connection.sendall(HEAD[:30])

    def _slow_body(self) -> None:
        thread = threading.Thread(target=self._trickle)
        thread.start()
        self._slow = [t for t in self._slow if t.is_alive()] + [thread]

    def _trickle(self) -> None:
        with self._connect() as connection:
            connection.sendall(HEAD % (INFER.encode(), len(BODY)))
            for start in range(0, len(BODY), 10):
                connection.sendall(BODY[start : start + 10])
                time.sleep(0.02)
            answer = connection.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                self.result.wrong.append(f"a slow body got {answer[:60]!r}")


def soak(seconds: float, folder: Path) -> SoakResult:
    """Runs the load for so long."""
    bundle = identity_bundle(folder / "identity", "float32")
    result = SoakResult()
    with serve_process(folder, str(bundle.path), "--unproved") as served:
        server = psutil.Process(served.process.pid)
        started = time.monotonic()
        result.idle.append(_sample(server, started))
        with clients(GOOD_CLIENTS, served.port, INFER, WIDTH) as good:
            bad = BadClient(served.port, good, result)
            thread = threading.Thread(target=bad)
            thread.start()
            while time.monotonic() < started + seconds:
                time.sleep(min(1.0, seconds / 10))
                result.samples.append(_sample(server, started))
            bad.stop.set()
            thread.join()
        result.idle.append(_settled(server, started, result.idle[0].descriptors))
        result.wrong += [word for client in good for word in client.wrong]
        lost = [name for client in good for name in client.unanswered]
        result.wrong += [f"{name} got no answer" for name in lost]
        result.answered = sum(len(client.answered) for client in good)
        if served.stop() != 0:
            result.wrong.append(f"the server exited with {served.process.returncode}")
        result.wrong += [
            f"the server says {line}" for line in served.lines() if line["level"] == "ERROR"
        ]
    return result


def _sample(server: psutil.Process, started: float) -> Sample:
    with server.oneshot():
        return Sample(
            time.monotonic() - started,
            server.memory_info().rss,
            server.num_fds(),
            server.num_threads(),
        )


def _settled(server: psutil.Process, started: float, descriptors: int) -> Sample:
    """After the load: connections that clients left half open are closed within their time."""
    end = time.monotonic() + 30
    sample = _sample(server, started)
    while sample.descriptors > descriptors and time.monotonic() < end:
        time.sleep(0.1)
        sample = _sample(server, started)
    return sample


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=120.0)
    seconds = arguments.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="attnport-soak-") as name:
        result = soak(seconds, Path(name))
    before, after = result.idle
    sizes = np.array([sample.rss_bytes for sample in result.samples]) / 2**20
    low, high = result.growth()
    print(f"{result.answered} requests answered with their own result in {seconds:g} s")
    print(f"bad ones beside them: {result.bad}")
    third = len(sizes) // 3
    print(
        f"memory, MiB: {before.rss_bytes / 2**20:.1f} at start, {sizes[third]:.1f} after a third, "
        f"{sizes[-1]:.1f} at the end; slope {low:.0f} to {high:.0f} bytes/s after the first third"
    )
    print(
        f"descriptors: {before.descriptors} before, {after.descriptors} after; threads: "
        f"{before.threads} before, {after.threads} after"
    )
    for word in result.wrong[:20]:
        print(f"wrong: {word}")
    leaked = after.descriptors > before.descriptors
    return int(bool(result.wrong) or leaked or low > 0)


if __name__ == "__main__":
    sys.exit(main())
