"""An opened engine: arrays in by name, arrays out by name."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from attnport.export.records import TensorSpec


class Engine(ABC):
    """Something that computes what the bundle's graph computes.

    Threads may share one: `run` and `run_async` can be called from several at a time.

    Attributes:
        kind: Such as "torch-eager" or "ort-cpu".
        inputs: The inputs, in the order of the graph.
        outputs: The outputs, in the order of the graph.
    """

    kind: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes every output.

        Args:
            feeds: An array for each input, of the declared dtype and within the declared ranges.

        Raises:
            InputError: If a name, dtype, rank or size does not fit; says which and the valid ones.
        """

    async def run_async(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same as `run`, in a thread of the event loop's pool, so that the loop goes on.

        Args:
            feeds: As for `run`. They must not be written to until the result is there.

        Raises:
            InputError: As `run` does.
        """
        return await asyncio.to_thread(self.run, feeds)

    @abstractmethod
    def placement(self) -> dict[str, int]:
        """How many nodes each provider or device runs ("CPUExecutionProvider": 12)."""

    def close(self) -> None:  # noqa: B027 - an engine may hold nothing
        """Frees what the engine holds; running it afterwards is an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
