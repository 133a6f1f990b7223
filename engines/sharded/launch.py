"""Starts the ranks of one machine with torchrun, listens to them, and ends them all."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path

from attnport.engines.child_process import child_environment, python_module
from attnport.engines.sharded.messages import Failure, Hello, Ready, WorkerRequest
from attnport.errors import EngineUnavailableError

_LOOK_SECONDS = 0.2
_LOG_TAIL_BYTES = 2000


class Ranks:
    """The processes of all ranks, on this machine.

    The ranks find each other by a file, and talk over the loopback interface: nothing of it can be
    reached from another machine.

    Args:
        folder: The split bundle.
        count: How many ranks it has.
        device: "cpu" or "cuda".
        timeout_seconds: How long a sum waits for the slowest rank.
        start_seconds: How long the start may take.
        threads: CPU threads of one rank.

    Raises:
        EngineUnavailableError: If a rank fails to start, or takes too long.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        device: str,
        timeout_seconds: float,
        start_seconds: float,
        threads: int | None,
    ) -> None:
        self.count = count
        self.pids: dict[int, int] = {}
        self._connections: dict[int, Connection] = {}
        self._place = tempfile.TemporaryDirectory(prefix="attnport-ranks-")
        place = Path(self._place.name)
        key = secrets.token_bytes(32)
        request = WorkerRequest(
            folder=folder.resolve(),
            socket=str(place / "socket"),
            key=key.hex(),
            store=place / "store",
            device=device,
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
            threads=threads,
        )
        (place / "request.json").write_text(request.model_dump_json(), "utf-8")
        self._log = place / "log"
        self._torchrun: subprocess.Popen[bytes] | None = None
        try:
            with Listener(request.socket, "AF_UNIX", backlog=count, authkey=key) as listener:
                self._torchrun = _start_torchrun(place, count, self._log)
                self._await_start(listener, time.monotonic() + start_seconds)
        except BaseException:
            self.end()
            raise

    def send(self, rank: int, message: object) -> None:
        """Tells a rank something; one that died meanwhile is noticed by `receive`."""
        with contextlib.suppress(OSError):
            self._connections[rank].send(message)

    def receive(self, seconds: float) -> dict[int, object]:
        """One message of every rank.

        Args:
            seconds: How long to wait for all of them.

        Raises:
            EngineUnavailableError: If a rank fails, dies or does not answer in time; all ranks
                are ended then.
        """
        deadline = time.monotonic() + seconds
        found: dict[int, object] = {}
        while len(found) < self.count:
            open_ones = {c: r for r, c in self._connections.items() if r not in found}
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._ended(f"{_named(open_ones.values())} did not answer in {seconds:g} s")
            for connection in wait(list(open_ones), timeout=left):
                assert isinstance(connection, Connection)
                rank = open_ones[connection]
                found[rank] = self._message(connection, rank)
        return found

    def _message(self, connection: Connection, rank: int) -> object:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            raise self._ended(f"rank {rank} died") from None
        if isinstance(message, Failure):
            own = message.message.startswith(f"rank {rank}")
            raise self._ended(message.message if own else f"rank {rank}: {message.message}")
        return message

    def end(self) -> None:
        """Ends every process, whatever it does; one that is stopped, too."""
        for connection in self._connections.values():
            connection.close()
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._torchrun is not None:
            self._torchrun.terminate()
            try:
                self._torchrun.wait(5)
            except subprocess.TimeoutExpired:
                self._torchrun.kill()
                self._torchrun.wait()
        self._place.cleanup()

    def _await_start(self, listener: Listener, deadline: float) -> None:
        while len(self._connections) < self.count:
            connection = self._accept(listener, deadline)
            hello = connection.recv()
            assert isinstance(hello, Hello)
            self._connections[hello.rank], self.pids[hello.rank] = connection, hello.pid
        ready = self.receive(deadline - time.monotonic())
        assert all(isinstance(message, Ready) for message in ready.values())

    def _accept(self, listener: Listener, deadline: float) -> Connection:
        """The next rank that says hello; torchrun's end and the deadline are looked at meanwhile."""
        assert self._torchrun is not None
        raw = listener._listener._socket  # type: ignore[attr-defined]
        raw.settimeout(_LOOK_SECONDS)
        while True:
            with contextlib.suppress(TimeoutError):
                return listener.accept()
            missing = _named(set(range(self.count)) - set(self._connections))
            if self._torchrun.poll() is not None:
                raise self._ended(f"torchrun ended before {missing} started")
            if time.monotonic() > deadline:
                raise self._ended(f"{missing} did not start in time")

    def _ended(self, what: str) -> EngineUnavailableError:
        error = EngineUnavailableError(
            f"the run over {self.count} ranks was ended, since {what}: see why that rank stopped, "
            "and start again"
        )
        with contextlib.suppress(OSError):
            tail = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
            if tail.strip():
                error.add_note(f"The ranks' last messages:\n{tail}")
        return error


def _start_torchrun(place: Path, count: int, log: Path) -> subprocess.Popen[bytes]:
    command = [
        *python_module("torch.distributed.run"),
        f"--nproc-per-node={count}",
        "--nnodes=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={place / 'rendezvous'}",
        "--rdzv-conf=store_type=file",
        "--max-restarts=0",
        "-m",
        "attnport.engines.sharded.worker",
        str(place / "request.json"),
    ]
    environment = child_environment() | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    environment.setdefault("OMP_NUM_THREADS", "1")  # torch only sums; torchrun warns otherwise
    with log.open("wb") as stream:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment
        )


def _named(ranks: object) -> str:
    numbers = sorted(ranks)  # type: ignore[call-overload]
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
