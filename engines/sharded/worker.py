"""The process of one rank: `python -m attnport.engines.sharded.worker REQUEST.json`, by torchrun.

It says that it is there on the socket of the process that asked for it, computes what comes, and
answers. When that process is gone it ends, whatever it was doing.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections import deque
from multiprocessing.connection import Client, Connection
from pathlib import Path

import numpy as np

from attnport.engines.sharded.messages import Answer, Failure, Hello, Ready, WorkerRequest
from attnport.engines.sharded.rank_session import Arrays


class _Inbox:
    """What the parent sends, read by a thread of its own so that its end is seen at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: deque[Arrays | None] = deque()
        self._arrived = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    def take(self) -> Arrays | None:
        self._arrived.acquire()
        return self._messages.popleft()

    def _read(self) -> None:
        try:
            while True:
                self._messages.append(self._connection.recv())
                self._arrived.release()
        except (EOFError, OSError):
            os._exit(1)  # nobody wants an answer any more; a sum may be waited for just now


def main(request_path: Path) -> int:
    # Ctrl-C reaches every process of the terminal; the parent decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = WorkerRequest.model_validate_json(request_path.read_text("utf-8"))
    rank = int(os.environ.get("RANK", "-1"))
    connection = Client(request.socket, "AF_UNIX")
    connection.send(Hello(rank, os.getpid()))
    inbox = _Inbox(connection)
    try:
        _serve(request, rank, connection, inbox)
    except Exception as err:  # the parent tells it to the user, whatever it is
        connection.send(Failure(rank, type(err).__name__, str(err)))
        return 1
    return 0


def _serve(request: WorkerRequest, rank: int, connection: Connection, inbox: _Inbox) -> None:
    from attnport.engines.sharded.rank import Rank

    with Rank(
        request.folder,
        device=request.device,
        timeout_seconds=request.timeout_seconds,
        start_seconds=request.start_seconds,
        store=request.store,
        threads=request.threads,
    ) as one:
        connection.send(Ready(rank))
        split = {part.name for part in one.sharded.manifest.split_outputs}
        while (feeds := inbox.take()) is not None:
            outputs = one.run(feeds)
            given = {n: a for n, a in outputs.items() if n in split or rank == 0}
            digests = {n: _digest(a) for n, a in outputs.items() if n not in split}
            connection.send(Answer(rank, given, digests))


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
