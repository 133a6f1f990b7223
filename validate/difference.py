"""How far an engine's output is from the reference, element by element, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """An output against the reference.

    Attributes:
        max: The largest absolute error; NaN or infinite where an element is not finite.
        mean: The mean absolute error; likewise.
        not_finite: How many elements are NaN or infinite where the reference is not, or finite
            where it is infinite.
        at: The coordinate of the worst element; the first that is not finite where there is one.
        value: What the engine gives there.
        expected: What the reference gives there.
    """

    max: float
    mean: float
    not_finite: int
    at: tuple[int, ...]
    value: float
    expected: float


def difference(output: np.ndarray, reference: np.ndarray) -> Difference:
    """Compares two arrays of one shape that hold at least one element.

    An infinity agrees with the same infinity only. A NaN in either never agrees.

    Raises:
        ValueError: If the shapes differ (numpy would broadcast them and hide it) or are empty.
    """
    if output.shape != reference.shape or not output.size:
        raise ValueError(f"shapes {output.shape} and {reference.shape} cannot be compared")
    with np.errstate(invalid="ignore", over="ignore"):
        got = output.astype(np.float64).reshape(-1)
        wanted = reference.astype(np.float64).reshape(-1)
        error = np.where(np.isinf(wanted) & (got == wanted), 0.0, np.abs(got - wanted))
    not_finite = ~np.isfinite(error)
    worst = int(np.argmax(not_finite if not_finite.any() else error))
    return Difference(
        max=float(np.max(error)),
        mean=float(np.mean(error)),
        not_finite=int(np.count_nonzero(not_finite)),
        at=tuple(int(i) for i in np.unravel_index(worst, output.shape)),
        value=float(got[worst]),
        expected=float(wanted[worst]),
    )
