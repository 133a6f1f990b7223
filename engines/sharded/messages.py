"""What the process that asks and the processes of the ranks tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnport.export.records import Record


class WorkerRequest(Record):
    """What every rank is told at its start, in a file.

    Attributes:
        folder: The split bundle.
        socket: Where the asking process listens.
        store: The file by which the ranks find each other.
        device: "cpu" or "cuda".
        timeout_seconds: How long a sum waits.
        start_seconds: How long the start waits.
        threads: CPU threads of one rank.
    """

    folder: Path
    socket: str
    store: Path
    device: str
    timeout_seconds: float
    start_seconds: float
    threads: int | None


@dataclass(frozen=True)
class Hello:
    """A rank has started."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Ready:
    """A rank has its weights, and has found the others."""

    rank: int


@dataclass(frozen=True)
class Answer:
    """What a rank gives: its parts of outputs that are split, and on rank 0 the others.

    Attributes:
        rank: Which.
        outputs: These.
        digests: The hash of every output that all ranks have whole: they must agree.
    """

    rank: int
    outputs: dict[str, np.ndarray]
    digests: dict[str, str]


@dataclass(frozen=True)
class Failure:
    """Why a rank gives nothing.

    Attributes:
        rank: Which.
        kind: The class of the error.
        message: Its text.
    """

    rank: int
    kind: str
    message: str
