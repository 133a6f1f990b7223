"""All ranks of a split bundle in this process, one step of each at a time: the sums without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.sharded.parts import feeds_of_rank, joined_outputs
from attnport.engines.sharded.rank_session import Arrays, RankSession, Steps
from attnport.export.shard.sharded import ShardedBundle


class Lockstep(Engine):
    """An engine of the whole, made of one session for each rank."""

    def __init__(self, path: Path) -> None:
        self.sharded = ShardedBundle.load(path)
        manifest = self.sharded.manifest
        self.kind = "lockstep"
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        ranks = range(self.sharded.count)
        self.sessions = [RankSession(self.sharded.rank(rank), threads=1) for rank in ranks]

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        return joined_outputs(self.sharded.manifest, self.of_ranks(feeds))

    def of_ranks(self, feeds: Mapping[str, np.ndarray]) -> list[Arrays]:
        """What each rank gives."""
        manifest = self.sharded.manifest
        steps = [
            session.steps(feeds_of_rank(manifest, rank, feeds))
            for rank, session in enumerate(self.sessions)
        ]
        return in_lockstep(steps)

    def placement(self) -> dict[str, int]:
        return {}


def in_lockstep(steps: Sequence[Steps]) -> list[Arrays]:
    """Runs all ranks from sum to sum; gives what each returns in the end."""
    sent: np.ndarray | None = None
    results: list[Arrays] = []
    while not results:
        partial = []
        for step in steps:
            try:
                partial.append(next(step) if sent is None else step.send(sent))
            except StopIteration as end:
                results.append(end.value)
        sent = sum(partial[1:], partial[0]) if partial else None
    return results
