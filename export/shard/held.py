"""Which part of a tensor a rank holds: some positions along one axis, and all of every other.

What a movement of elements (Reshape, Transpose, Split, Gather, …) does to that part is not derived
from how it is written: a mask of the part is sent through it at concrete sizes, and read off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


class CannotSplitError(Exception):
    """A part of a tensor is not what one axis can tell; the text says of which node."""


@dataclass(frozen=True)
class Held:
    """Some positions along one axis.

    Attributes:
        axis: Which axis, from 0.
        positions: Which positions, in ascending order.
        size: How many there are in the whole tensor.
    """

    axis: int
    positions: tuple[int, ...]
    size: int

    @property
    def count(self) -> int:
        """How many positions a rank holds."""
        return len(self.positions)

    def moved_to(self, axis: int) -> Held:
        """The same positions along another axis."""
        return Held(axis, self.positions, self.size)

    def index_of(self, wanted: Iterable[int]) -> np.ndarray:
        """Where among the positions held those wanted are; all of them must be."""
        return np.searchsorted(np.array(self.positions), np.array(list(wanted), np.int64))

    def mask(self, shape: tuple[int, ...]) -> np.ndarray:
        """A bool array of the whole tensor's shape, True where the rank holds it."""
        along = np.zeros(self.size, bool)
        along[list(self.positions)] = True
        ones = [1] * len(shape)
        ones[self.axis] = self.size
        return np.broadcast_to(along.reshape(ones), shape)

    def take(self, array: np.ndarray) -> np.ndarray:
        """The rank's part of a whole array."""
        first, last = self.positions[0], self.positions[-1]
        if last - first + 1 == self.count:  # a slice is looked at, and not copied
            index = [slice(None)] * array.ndim
            index[self.axis] = slice(first, last + 1)
            return array[tuple(index)]
        return np.take(array, self.positions, self.axis)


def held_of_mask(mask: np.ndarray, used: np.ndarray | None = None) -> Held | None:
    """Reads a part from its mask; None where it is the whole tensor.

    Args:
        mask: True where an element belongs to the part.
        used: True where an element is used at all: the part may hold others as it likes.

    Raises:
        CannotSplitError: If the part is not the same along all axes but one, or nothing.
    """
    if used is None:
        used = np.ones_like(mask)
    if np.array_equal(mask, used):
        return None
    for axis in range(mask.ndim):
        others = tuple(i for i in range(mask.ndim) if i != axis)
        along = np.asarray(mask.any(axis=others))
        if along.any() and np.array_equal(mask, used & _along(along, axis, mask)):
            positions = tuple(int(at) for at in np.flatnonzero(along))
            return Held(axis, positions, mask.shape[axis])
    raise CannotSplitError("a rank's part is no set of positions along one axis of it")


def _along(values: np.ndarray, axis: int, like: np.ndarray) -> np.ndarray:
    shape = [1] * like.ndim
    shape[axis] = values.size
    return np.broadcast_to(values.reshape(shape), like.shape)


def union(parts: Iterable[Held]) -> Held | None:
    """All positions of several parts along one axis; None where they lie along different ones."""
    first, *rest = parts
    if any(part.axis != first.axis for part in rest):
        return None
    positions = sorted({at for part in (first, *rest) for at in part.positions})
    return Held(first.axis, tuple(positions), first.size)
