"""How far a proof goes beyond the cases that the bundle carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

DEFAULT_MEMORY_BYTES = 2 << 30

NamedInputs = tuple[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class OwnCases:
    """Cases of the user's own.

    Attributes:
        origin: Where they come from: a file, or the name of a generator.
        make: Gives (name, {input: array}) each time it is called.
    """

    origin: str
    make: Callable[[], Iterable[NamedInputs]]


@dataclass(frozen=True)
class Extent:
    """What to prove besides the shipped cases; the module must be at hand for all but the last.

    Attributes:
        further: Whether to generate the further cases, and to reopen and rebuild each engine.
        own: The user's own cases.
        memory_bytes: The most that a single case may need; larger ones are left out, and said so.
        seed: Of the generated cases.
        reproducers: The folder in which each failure leaves what reproduces it; None for none.
    """

    further: bool = False
    own: tuple[OwnCases, ...] = field(default=())
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    seed: int = 0
    reproducers: Path | None = None

    @property
    def needs_module(self) -> bool:
        return self.further or bool(self.own)
