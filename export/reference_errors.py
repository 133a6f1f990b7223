"""What the parity bound is made of: errors of several forms against the float64 result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnport.export.records import OutputErrors, OutputReference, TensorSpec
from attnport.export.rounding import ROUNDINGS


def known_of(
    spec: TensorSpec,
    plain: np.ndarray,
    safe: np.ndarray,
    eager: np.ndarray | None,
    sdpa: np.ndarray | None,
    moved: Sequence[np.ndarray],
) -> OutputReference:
    """What is known of one output.

    Args:
        spec: The output.
        plain: The float64 module as it is.
        safe: The same with dead rows as the specification has them: the reference.
        eager: The module in its own dtype; None where it failed.
        sdpa: Its SDPA form in that dtype; None where there is none.
        moved: Draws of the float64 module with every number moved by ROUNDINGS roundings.
    """
    finite = np.isfinite(safe)
    note = ""
    if not finite.all():
        note = (
            f"the module itself is not finite in float64 ({int((~finite).sum())} elements of "
            f"{spec.name}): that is its own fault, and nothing can be compared"
        )
    elif safe.size == 0:
        note = f"{spec.name} is empty at these sizes: there is nothing to compare"
    dead = ~np.isfinite(plain) & finite
    rows = int(dead.reshape(-1, dead.shape[-1]).any(-1).sum()) if dead.ndim else int(dead)
    magnitudes = np.abs(safe[finite]) if finite.any() else np.zeros(1)
    return OutputReference(
        eager=_errors(eager, safe) if eager is not None else None,
        sdpa=_errors(sdpa, safe) if sdpa is not None else None,
        perturbed=_one_rounding([_errors(draw, safe) for draw in moved]),
        rms=float(np.sqrt(np.mean(magnitudes.astype(np.float64) ** 2))),
        max_abs=float(magnitudes.max()),
        dead_rows=rows,
        note=note,
    )


def _one_rounding(draws: Sequence[OutputErrors | None]) -> OutputErrors | None:
    """The worst of the draws, for a single rounding; None where one is not finite."""
    if not draws or any(draw is None for draw in draws):
        return None
    return OutputErrors(
        max=max(draw.max for draw in draws if draw) / ROUNDINGS,
        mean=max(draw.mean for draw in draws if draw) / ROUNDINGS,
    )


def _errors(result: np.ndarray, reference: np.ndarray) -> OutputErrors | None:
    """None where the result is not finite, or has another shape."""
    if result.shape != reference.shape:
        return None
    wide = result.astype(np.float64)
    if not np.isfinite(wide).all() or not np.isfinite(reference).all():
        return None
    error = np.abs(wide - reference)
    if error.size == 0:
        return OutputErrors(max=0.0, mean=0.0)
    return OutputErrors(max=float(error.max()), mean=float(error.mean()))
