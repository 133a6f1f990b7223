"""Where caches live between the steps of decoding, and the bytes that steps move.

A store runs one step: it takes the small inputs as arrays, gives the result as an array, and keeps
the caches themselves. Only what it does differs: `ort_caches` binds ONNX Runtime's own values,
`plan_caches` device memory, `carried_caches` hands arrays in and out like any other input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnport.engines.decoding.layout import Cache, DecodingLayout
from attnport.errors import InputError
from attnport.export.arrays import numpy_dtype


@dataclass(frozen=True)
class Copied:
    """Bytes that one step moved between the caller's memory and the engine's.

    Attributes:
        to_engine: Tokens, positions, mask and the like.
        from_engine: The result.
        caches: Keys and values, in both directions; 0 where they stay.
    """

    to_engine: int = 0
    from_engine: int = 0
    caches: int = 0

    @property
    def total(self) -> int:
        return self.to_engine + self.from_engine + self.caches

    def __add__(self, other: Copied) -> Copied:
        return Copied(
            self.to_engine + other.to_engine,
            self.from_engine + other.from_engine,
            self.caches + other.caches,
        )


class CacheStore(ABC):
    """Caches of one batch, and the engine that reads and writes them.

    Attributes:
        kind: The engine's kind, such as "ort-cpu".
        keeps: How caches pass from step to step, in words for a report.
    """

    kind: str
    keeps: str

    @abstractmethod
    def start(self, past: Mapping[str, np.ndarray], fixed: Mapping[str, np.ndarray]) -> None:
        """Begins with given caches.

        Args:
            past: An array for each cache's input; may be of no tokens.
            fixed: What stays the same in all steps.
        """

    @abstractmethod
    def step(self, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Copied]:
        """Runs one step, after which the caches hold its tokens.

        Args:
            feeds: Every input but caches and fixed ones.

        Returns:
            The result, the caller's own, and what was moved.
        """

    @abstractmethod
    def read(self) -> dict[str, np.ndarray]:
        """Copies of the caches, by the names of their inputs."""

    def close(self) -> None:  # noqa: B027 - a store may hold nothing
        """Frees what the store holds."""


def empty_past(layout: DecodingLayout, batch: int, capacity: int | None) -> dict[str, np.ndarray]:
    """Caches without a token: of no rows where they grow, else zeros."""
    rows = 0 if layout.kind == "concat" else capacity
    return {
        cache.input.name: np.zeros(
            _cache_shape(cache, batch, rows), numpy_dtype(cache.input.dtype)
        )
        for cache in layout.caches
    }


def check_past(
    layout: DecodingLayout, past: Mapping[str, np.ndarray], batch: int, rows: int
) -> None:
    """Whether given caches fit.

    Args:
        layout: The parts.
        past: An array for each cache's input.
        batch: B.
        rows: How many rows each must have: tokens held, or the capacity.

    Raises:
        InputError: If one is missing, or of another dtype, batch or length.
    """
    names = [cache.input.name for cache in layout.caches]
    if set(past) != set(names):
        given = ", ".join(past) or "nothing"
        raise InputError(f"the caches are {', '.join(names)}, and {given} was given: give all")
    for cache in layout.caches:
        name, array = cache.input.name, past[cache.input.name]
        wanted = numpy_dtype(cache.input.dtype)
        if array.dtype != wanted:
            raise InputError(
                f"cache {name!r} is {array.dtype}, the graph takes {wanted}: convert it"
            )
        shape = _cache_shape(cache, batch, rows)
        if array.shape != shape:
            raise InputError(
                f"cache {name!r} has shape {array.shape}, and {batch} sequences with {rows} rows "
                f"are {shape}: give the caches of one and the same step"
            )


def _cache_shape(cache: Cache, batch: int, rows: int | None) -> tuple[int, ...]:
    shape = [dim if isinstance(dim, int) else -1 for dim in cache.input.shape]
    shape[0] = batch
    if rows is not None:
        shape[cache.axis] = rows
    if -1 in shape:
        raise InputError(
            f"cache {cache.input.name!r} is {cache.input.shape}: give its capacity, --capacity N"
        )
    return tuple(shape)
