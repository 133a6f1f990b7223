"""What is common to engines whose inputs lie on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import numpy as np


class Resident(ABC):
    """An engine with several sets of the same inputs on its device.

    Attributes:
        stream: The stream that runs are given to, as CUDA's handle.
        sets: How many sets of inputs there are.
    """

    stream: int
    sets: int

    @abstractmethod
    def launch(self, which: int) -> None:
        """Gives a run on a set of inputs to the stream, and does not wait for it."""

    @abstractmethod
    def result(self, which: int) -> dict[str, np.ndarray]:
        """Waits, and copies what the last run on a set gave."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything on the device."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
