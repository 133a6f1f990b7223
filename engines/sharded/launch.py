"""Starts the ranks of one machine with torchrun, listens to them, and ends them all."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, Listener
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
        self._inbox: queue.Queue[tuple[Connection, object]] = queue.Queue()
        self._place = tempfile.TemporaryDirectory(prefix="attnport-ranks-")
        place = Path(self._place.name)
        request = WorkerRequest(
            folder=folder.resolve(),
            socket=str(place / "socket"),
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
            # The folder is this user's alone, and so is the socket in it.
            with Listener(request.socket, "AF_UNIX", backlog=count) as listener:
                self._torchrun = _start_torchrun(place, count, self._log)
                self._await_start(listener, time.monotonic() + start_seconds)
        except BaseException:
            self.end()
            raise

    def send(self, rank: int, message: object) -> None:
        """Tells a rank something, without waiting until it listens: it may have stopped."""
        connection = self._connections[rank]
        threading.Thread(target=_send, args=(connection, message), daemon=True).start()

    def receive(self, seconds: float) -> dict[int, object]:
        """One message of every rank.

        Args:
            seconds: How long to wait for all of them.

        Raises:
            EngineUnavailableError: If a rank fails, dies or does not answer in time.
        """
        deadline = time.monotonic() + seconds
        rank_of = {connection: rank for rank, connection in self._connections.items()}
        found: dict[int, object] = {}
        while len(found) < self.count:
            try:
                connection, message = self._inbox.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                silent = set(rank_of.values()) - set(found)
                raise self._ended(f"{_named(silent)} did not answer in {seconds:g} s") from None
            found[rank_of[connection]] = self._checked(message, rank_of[connection])
        return found

    def _checked(self, message: object, rank: int) -> object:
        if message is None:
            raise self._ended(f"rank {rank} died")
        if isinstance(message, Failure):
            own = message.message.startswith(f"rank {rank}")
            raise self._ended(message.message if own else f"rank {rank}: {message.message}")
        return message

    def end(self) -> None:
        """Ends every process, whatever it does; one that is stopped, too."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for connection in self._connections.values():
            connection.close()
        if self._torchrun is not None:
            self._torchrun.terminate()
            try:
                self._torchrun.wait(5)
            except subprocess.TimeoutExpired:
                self._torchrun.kill()
                self._torchrun.wait()
        self._place.cleanup()

    def _await_start(self, listener: Listener, deadline: float) -> None:
        """Takes in every rank until all are ready; torchrun's end is looked at meanwhile."""
        assert self._torchrun is not None
        ready: set[int] = set()
        while len(ready) < self.count:
            self._accept(listener)
            ended = self._torchrun.poll() is not None
            # What a rank said before it ended may still be on the way here.
            self._take_in(ready, seconds=1.0 if ended else 0.0)
            missing = _named(set(range(self.count)) - ready)
            if ended:
                raise self._ended(f"torchrun ended before {missing} started")
            if time.monotonic() > deadline:
                raise self._ended(f"{missing} did not start in time")

    def _accept(self, listener: Listener) -> None:
        """The next rank that connects, if one does so soon."""
        raw = listener._listener._socket  # type: ignore[attr-defined]
        raw.settimeout(_LOOK_SECONDS)
        with contextlib.suppress(TimeoutError):
            connection = listener.accept()
            arguments = (connection, self._inbox)
            threading.Thread(target=_read, args=arguments, daemon=True).start()

    def _take_in(self, ready: set[int], seconds: float) -> None:
        """What ranks say while they start; the error of one that fails."""
        with contextlib.suppress(queue.Empty):
            while True:
                connection, message = self._inbox.get(timeout=seconds)
                if isinstance(message, Hello):
                    self._connections[message.rank] = connection
                    self.pids[message.rank] = message.pid
                elif isinstance(message, Ready):
                    ready.add(message.rank)
                else:
                    known = {one: rank for rank, one in self._connections.items()}
                    self._checked(message, known[connection])

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


def _send(connection: Connection, message: object) -> None:
    # One that died is noticed when its answer is awaited; one that was closed meanwhile has no
    # handle any more, which is a TypeError.
    with contextlib.suppress(OSError, TypeError):
        connection.send(message)


def _read(connection: Connection, inbox: queue.Queue[tuple[Connection, object]]) -> None:
    """Hands on what a rank says; None when it is gone. A message may come in part for ever."""
    try:
        while True:
            inbox.put((connection, connection.recv()))
    except (EOFError, OSError, TypeError):
        inbox.put((connection, None))


def _named(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
