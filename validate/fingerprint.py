"""Fingerprints: whether two tensors hold the same numbers, whatever their layout, in a few floats.

The graph keeps its heads in other axes than the module does, and merged what the module kept
apart. What stays the same under any permutation of the elements tells that a tensor of the one is
a tensor of the other; for tensors of one shape a projection tells that the order is the same, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fingerprint:
    """What is kept of a float64 tensor.

    Attributes:
        shape: Its shape.
        infinite: How many elements are not finite.
        moments: Sum, sum of squares, sum of cubes, maximum and minimum of the finite elements.
        projection: The elements times fixed numbers, in order.
        scale: The sum of magnitudes, which errors of the sums are measured by.
    """

    shape: tuple[int, ...]
    infinite: int
    moments: tuple[float, ...]
    projection: float
    scale: float

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def same_numbers(self, other: Fingerprint, limit: float) -> bool:
        """Whether the other holds the same elements, in whatever order.

        Args:
            other: Of another tensor.
            limit: The part of the magnitudes that sums may differ by.
        """
        if self.size != other.size or self.infinite != other.infinite:
            return False
        top = max(abs(self.moments[3]), abs(self.moments[4]), np.finfo(np.float64).tiny)
        scales = (self.scale, self.scale * top, self.scale * top**2, top, top)
        pairs = zip(self.moments, other.moments, scales, strict=True)
        return all(abs(a - b) <= limit * scale for a, b, scale in pairs)

    def same_order(self, other: Fingerprint, limit: float) -> bool:
        """Whether tensors of one shape with the same numbers hold them in the same places."""
        return abs(self.projection - other.projection) <= limit * self.scale


def fingerprint(array: np.ndarray) -> Fingerprint:
    """The fingerprint of a floating tensor."""
    flat = array.astype(np.float64).reshape(-1)
    finite = np.isfinite(flat)
    infinite = int(flat.size - np.count_nonzero(finite))
    if infinite:
        flat = np.where(finite, flat, 0.0)
    if not flat.size:
        return Fingerprint(array.shape, 0, (0.0,) * 5, 0.0, 0.0)
    cosines = np.cos(np.arange(1, flat.size + 1) * 0.7390851332151607)
    moments = (flat.sum(), (flat**2).sum(), (flat**3).sum(), flat.max(), flat.min())
    return Fingerprint(
        tuple(array.shape),
        infinite,
        tuple(float(moment) for moment in moments),
        float(flat @ cosines),
        float(np.abs(flat).sum()),
    )
