"""Caches handed in and out of an engine as ordinary arrays, at every step.

It is what a stateless endpoint does, and the torch kinds; and the measure of what binding saves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnport.engines.decoding.caches import CacheStore, Copied
from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.engine import Engine


class CarriedCaches(CacheStore):
    """Caches of the caller's memory.

    Args:
        engine: Any opened engine, closed with this store.
        layout: The parts of its graph.
    """

    def __init__(self, engine: Engine, layout: DecodingLayout) -> None:
        self.kind = engine.kind
        self.keeps = "the caller's: they go in and come out at every step"
        self._engine, self._layout = engine, layout
        self._past: dict[str, np.ndarray] = {}
        self._fixed: dict[str, np.ndarray] = {}

    def start(self, past: Mapping[str, np.ndarray], fixed: Mapping[str, np.ndarray]) -> None:
        self._past, self._fixed = dict(past), dict(fixed)

    def step(self, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Copied]:
        outputs = self._engine.run({**feeds, **self._past, **self._fixed})
        moved = sum(array.nbytes for array in self._past.values())
        self._past = {c.input.name: outputs[c.output.name] for c in self._layout.caches}
        moved += sum(array.nbytes for array in self._past.values())
        result = outputs[self._layout.result.name]
        sent = sum(array.nbytes for array in (*feeds.values(), *self._fixed.values()))
        return result, Copied(sent, result.nbytes, moved)

    def read(self) -> dict[str, np.ndarray]:
        return {name: np.array(array) for name, array in self._past.items()}

    def close(self) -> None:
        self._engine.close()
