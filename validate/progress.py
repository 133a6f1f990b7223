"""How far a proof is, told to whoever draws the bar."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]


class Steps:
    """A number of steps of equal length, of which some tell of their inside.

    Args:
        tell: Called with what is being done and the fraction, from 0 to 1, that is done.
        total: How many steps there will be.
    """

    def __init__(self, tell: Progress | None, total: int) -> None:
        self._tell = tell or (lambda what, fraction: None)
        self._total = max(total, 1)
        self._begun = 0

    def begin(self, what: str) -> Progress:
        """Begins a step and gives what tells of its inside."""
        before = self._begun
        self._begun += 1

        def inside(phase: str, fraction: float) -> None:
            self._tell(f"{what}: {phase}", (before + fraction) / self._total)

        self._tell(what, before / self._total)
        return inside

    def reach(self, step: int) -> None:
        """Counts steps that fell away as done."""
        self._begun = step
