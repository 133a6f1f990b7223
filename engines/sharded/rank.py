"""One rank, in the process that runs it: its session and its place among the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from attnport.engines.sharded.group import RankGroup, world_from_environment
from attnport.engines.sharded.rank_session import Arrays, RankSession
from attnport.errors import UsageError
from attnport.export.shard.sharded import ShardedBundle

DEFAULT_TIMEOUT_SECONDS = 60.0
DEFAULT_START_SECONDS = 300.0
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class Rank:
    """A rank of a split bundle, opened by each of the processes that torchrun starts.

    Args:
        path: The folder that `attnport shard` wrote; a machine needs no more than its own ranks.
        device: "cpu", or "cuda" for a GPU of each rank's own.
        timeout_seconds: How long a sum waits for the slowest rank.
        start_seconds: How long the start waits for the last rank.
        store: A file by which the ranks of one machine find each other; None for torchrun's
            address and port.
        threads: CPU threads of this rank; None leaves it to ONNX Runtime.

    Attributes:
        rank: Which one this is.
        sharded: The folder, opened.

    Raises:
        UsageError: If torchrun started another number of processes than there are ranks, or the
            ranks are of different splits.
        BundleError: If this rank is missing, or of another split than the manifest.
        EngineUnavailableError: If not all ranks started in time.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "cpu",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        start_seconds: float = DEFAULT_START_SECONDS,
        store: Path | None = None,
        threads: int | None = None,
    ) -> None:
        if device not in _PROVIDERS:
            raise UsageError(f"there is no device {device!r}: use cpu or cuda")
        self.rank, started = world_from_environment()
        self.sharded = ShardedBundle.load(path, only=self.rank)
        if started != self.sharded.count:
            raise UsageError(
                f"{path} is split over {self.sharded.count} ranks, and {started} processes were "
                f"started: use `torchrun --nproc-per-node {self.sharded.count}`"
            )
        # torchrun numbers the ranks of each machine: each takes the GPU of that number.
        own = {"device_id": os.environ.get("LOCAL_RANK", "0")} if device == "cuda" else {}
        self._session = RankSession(
            self.sharded.rank(self.rank),
            provider=_PROVIDERS[device],
            provider_options=own,
            threads=threads,
        )
        self._group = RankGroup(
            self.rank,
            started,
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
            store=store,
            device=device,
        )
        self._group.require_same("split", self.sharded.manifest.split)
        self._group.require_same("order of sums", self._session.sums)

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        """Computes this rank's outputs, together with the other ranks.

        Args:
            feeds: This rank's inputs; see `attnport.engines.sharded.parts.feeds_of_rank`.

        Raises:
            EngineUnavailableError: If a rank does not take part within the time-out.
        """
        steps = self._session.steps(feeds)
        try:
            partial = next(steps)
            while True:
                partial = steps.send(self._group.sum(partial))
        except StopIteration as end:
            outputs: Arrays = end.value
            return outputs

    def close(self) -> None:
        """Leaves the others."""
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
