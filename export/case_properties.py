"""What must stay the same when inputs are changed in a known way, without knowing the numbers.

A property is written `NAME:AXIS`. Each says how the inputs are changed, and which part of the
outputs must then be which part of what they were:

    alone:AXIS      the last entry along the axis (a row of the batch) run alone gives the same
    permuted:AXIS   entries in another order give the same in that order; where the outputs have no
                    such axis (keys together with their values), exactly what they were
    beside-nan:AXIS an entry that is NaN spoils no other
    future:AXIS     numbers from the middle on changed, and nothing before it does (causality)

Whether the module itself has one is found out in float64; nothing else decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from attnport.axes import Axis
from attnport.export.records import PropertyName, TensorSpec

Arrays = Mapping[str, np.ndarray]

# What replaces the numbers after the middle: large, so that a leak of a small part is seen.
_LOUD = 8.0


@dataclass(frozen=True)
class Property:
    """One of the above along one axis, for inputs and outputs of known form.

    Attributes:
        name: Its name.
        axis: The axis.
    """

    name: PropertyName
    axis: str

    @classmethod
    def parse(cls, text: str) -> Property:
        """Reads `NAME:AXIS`, as it stands in a bundle."""
        name, _, axis = text.partition(":")
        found = next(known for known in get_args(PropertyName) if known == name)
        return cls(found, axis)

    def __str__(self) -> str:
        return f"{self.name}:{self.axis}"

    def applies(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        sizes: Mapping[str, int],
        axes: Mapping[str, Axis],
    ) -> bool:
        """Whether there is anything to change, and anything that must then stay the same."""
        on_input = [spec for spec in inputs if self.axis in spec.shape]
        on_output = any(self.axis in spec.shape for spec in outputs)
        if not on_input or sizes.get(self.axis, 1) < 2:
            return False
        if self.name == "alone":
            return on_output and 1 in axes[self.axis]
        if self.name == "permuted":
            return True
        return on_output and any(_is_number(spec) for spec in on_input)

    def changed(
        self, arrays: Arrays, specs: Sequence[TensorSpec], seed: int
    ) -> dict[str, np.ndarray]:
        """The inputs after the change, in their dtypes."""
        rng = np.random.Generator(np.random.PCG64(seed))
        found = {}
        for spec in specs:
            array = arrays[spec.name]
            for at in self._dims(spec):
                array = self._changed(array, spec, at, rng, seed)
            found[spec.name] = array
        return found

    def expected(
        self, arrays: Arrays, specs: Sequence[TensorSpec], seed: int
    ) -> dict[str, np.ndarray]:
        """What the changed inputs must give, of what the inputs gave; only what is comparable."""
        found = {}
        for spec in specs:
            array = arrays[spec.name]
            for at in self._dims(spec):
                if self.name == "permuted":
                    array = np.take(array, _order(array.shape[at], seed), at)
                array = self._kept(array, at, alone=True)
            if self._speaks_of(spec):
                found[spec.name] = array
        return found

    def compared(self, arrays: Arrays, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """The part of what the changed inputs gave that `expected` speaks of."""
        found = {}
        for spec in specs:
            if spec.name not in arrays or not self._speaks_of(spec):
                continue
            array = arrays[spec.name]
            if array.ndim == len(
                spec.shape
            ):  # one of another rank is wrong, and is judged as it is
                for at in self._dims(spec):
                    array = self._kept(array, at, alone=False)
            found[spec.name] = array
        return found

    def _dims(self, spec: TensorSpec) -> list[int]:
        return [at for at, dim in enumerate(spec.shape) if dim == self.axis]

    def _speaks_of(self, spec: TensorSpec) -> bool:
        return self.axis in spec.shape or self.name == "permuted"

    def _changed(
        self, array: np.ndarray, spec: TensorSpec, at: int, rng: np.random.Generator, seed: int
    ) -> np.ndarray:
        size = array.shape[at]
        if self.name == "alone":
            return np.take(array, [size - 1], at)
        if self.name == "permuted":
            return np.take(array, _order(size, seed), at)
        if not _is_number(spec):
            return array
        array = array.copy()
        view = np.moveaxis(array, at, 0)
        if self.name == "beside-nan":
            view[0] = np.nan
        else:
            late = view[size // 2 :]
            late[...] = (_LOUD * rng.standard_normal(late.shape)).astype(array.dtype)
        return array

    def _kept(self, array: np.ndarray, at: int, *, alone: bool) -> np.ndarray:
        size = array.shape[at]
        if self.name == "alone" and alone:
            return np.take(array, [size - 1], at)
        if self.name == "beside-nan":
            return np.take(array, np.arange(1, size), at)
        if self.name == "future":
            return np.take(array, np.arange(size // 2), at)
        return array


def possible_properties(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
    axes: Mapping[str, Axis],
) -> list[Property]:
    """Every property that could hold at these sizes."""
    found = [Property(name, axis) for axis in axes for name in get_args(PropertyName)]
    return [one for one in found if one.applies(inputs, outputs, sizes, axes)]


def _is_number(spec: TensorSpec) -> bool:
    return spec.role in ("activation", "cache") and "float" in spec.dtype


def _order(size: int, seed: int) -> np.ndarray:
    """An order in which no small sequence stays as it is."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(size)
    return np.roll(np.arange(size), 1) if (order == np.arange(size)).all() else order
