"""A split bundle as one engine: this process asks, one process for each rank computes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.engines.sharded.launch import Ranks
from attnport.engines.sharded.messages import Answer
from attnport.engines.sharded.parts import Arrays, feeds_of_rank, joined_outputs
from attnport.engines.sharded.rank import DEFAULT_START_SECONDS, DEFAULT_TIMEOUT_SECONDS
from attnport.errors import EngineUnavailableError, UsageError
from attnport.export.shard.sharded import ShardedBundle

# What an answer may take beyond the last sum: the other ranks' time-out is to be told, not ours.
_GRACE_SECONDS = 5.0


class ShardedEngine(Engine):
    """All ranks of a split bundle, on this machine.

    Args:
        sharded: What to run.
        device: "cpu", or "cuda" for a GPU of each rank's own.
        timeout_seconds: How long a sum waits for the slowest rank; a run that has no answer for
            so long is ended.
        start_seconds: How long the start may take.
        threads: CPU threads of one rank; None leaves it to ONNX Runtime.

    Raises:
        EngineUnavailableError: If a rank does not start.
        UsageError: If a time-out is not above 0.
    """

    def __init__(
        self,
        sharded: ShardedBundle,
        *,
        device: str = "cpu",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        start_seconds: float = DEFAULT_START_SECONDS,
        threads: int | None = None,
    ) -> None:
        for name, seconds in (("timeout", timeout_seconds), ("start", start_seconds)):
            if not seconds > 0:
                raise UsageError(f"the {name} is {seconds} s: give more than 0")
        self.kind = f"ort-{device}-{sharded.count}-ranks"
        self.sharded, self.timeout_seconds = sharded, timeout_seconds
        manifest = sharded.manifest
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self._check = compile_check(self.inputs, sharded.reference().axes)
        self._lock = threading.Lock()  # the ranks compute one thing at a time, in the same order
        self.ranks: Ranks | None = Ranks(
            sharded.path,
            sharded.count,
            device=device,
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
            threads=threads,
        )

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        """Computes every output.

        Raises:
            InputError: If a name, dtype, rank or size does not fit.
            EngineUnavailableError: If a rank dies, does not answer within the time-out, or gives
                another result than the others; all ranks are ended then.
        """
        checked = self._check(feeds)
        with self._lock:
            if self.ranks is None:
                raise UsageError(f"this {self.kind} engine was closed: open it again")
            try:
                return self._joined(self._answers(self.ranks, checked))
            except EngineUnavailableError:
                self._end()
                raise

    def _answers(self, ranks: Ranks, feeds: Mapping[str, np.ndarray]) -> list[Answer]:
        manifest = self.sharded.manifest
        for rank in range(ranks.count):
            ranks.send(rank, feeds_of_rank(manifest, rank, feeds))
        sums = len(manifest.reductions) + 1
        received = ranks.receive(self.timeout_seconds * sums + _GRACE_SECONDS)
        answers = [message for message in received.values() if isinstance(message, Answer)]
        return sorted(answers, key=lambda answer: answer.rank)

    def _joined(self, answers: list[Answer]) -> Arrays:
        require_agreement(answers)
        return joined_outputs(self.sharded.manifest, [answer.outputs for answer in answers])

    def placement(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self.ranks is not None:
            self.ranks.end()
            self.ranks = None


def require_agreement(answers: Sequence[Answer]) -> None:
    """Checks that outputs which every rank has whole are the same bits everywhere.

    Raises:
        EngineUnavailableError: If they are not: then one of them computes something else.
    """
    first = answers[0]
    for answer in answers[1:]:
        differing = [n for n, digest in answer.digests.items() if digest != first.digests[n]]
        if differing:
            raise EngineUnavailableError(
                f"rank {answer.rank} gives another {', '.join(differing)} than rank {first.rank}, "
                "and each should have the same bits: nothing is returned; run the ranks on devices "
                "of one kind, and report it if they are"
            )
