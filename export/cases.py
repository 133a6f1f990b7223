"""Generates the inputs of the cases: sizes from the axes, masks and numbers from the roles.

Everything follows from a seed, by numpy's PCG64; nothing here knows the module. A bundle carries
the first cases; where the module is at hand the further ones are made, too.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.axes import Axis
from attnport.export import case_decoding
from attnport.export.arrays import numpy_dtype
from attnport.export.case_decoding import decoding_sizes
from attnport.export.case_masks import FILLS, FURTHER_MASKS, MASKS, applies
from attnport.export.case_numbers import MAGNITUDES, array
from attnport.export.case_sizes import Sizes, capped, first_sizes, further_sizes
from attnport.export.records import TensorSpec

DEFAULT_BUDGET_BYTES = 64 << 20


@dataclass(frozen=True)
class CasePlan:
    """A case that is to be made.

    Attributes:
        name: Such as "opt" or "between-causal".
        sizes: The size of each axis.
        mask: What masks and biases hide, a kind of `case_masks`; "none" where nothing does.
        seed: Of its random numbers.
        magnitude: Of its activations, one of `case_numbers.MAGNITUDES`.
        fill: How a bias hides, one of `case_masks.FILLS`.
    """

    name: str
    sizes: dict[str, int]
    mask: str
    seed: int
    magnitude: str = "normal"
    fill: str = "-inf"

    def inputs(self, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """An array for each input, in its dtype.

        Raises:
            UsageError: If an input has a dimension that is no axis.
        """
        rng = np.random.Generator(np.random.PCG64(self.seed))
        return {
            spec.name: array(
                spec,
                self.sizes,
                mask=self.mask,
                magnitude=self.magnitude,
                fill=self.fill,
                rng=rng,
            )
            for spec in specs
        }

    def nbytes(self, specs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Bytes on disk: the inputs, and float64 outputs; unknown dimensions count as the largest."""
        largest = max(self.sizes.values(), default=1)
        total = 0
        for spec, width in [(s, numpy_dtype(s.dtype).itemsize) for s in specs] + [
            (s, 8) for s in outputs
        ]:
            sizes = [d if isinstance(d, int) else self.sizes.get(d, largest) for d in spec.shape]
            total += width * math.prod(sizes)
        return total


def plan_cases(
    specs: Sequence[TensorSpec],
    axes: Mapping[str, Axis],
    *,
    seed: int = 0,
    caps: Mapping[str, int] | None = None,
) -> list[CasePlan]:
    """The first set of cases: every size that matters, and every kind of mask at one of them.

    Args:
        specs: The inputs.
        axes: The axes.
        seed: What every case's own seed is made of.
        caps: Sizes that no case is to exceed, by axis.

    Raises:
        UsageError: If a cap is not an axis, or is below its minimum.
    """
    axes = capped(axes, caps or {})
    masked = _masked(specs)
    sizes = first_sizes(axes)
    plans = [_plan(name, at, _usual(masked), seed) for name, at in sizes.items()]
    at = middle(axes)
    plans += [_plan(f"between-{kind}", at, kind, seed) for kind in MASKS if _some(kind, masked)]
    decoding = decoding_plan(specs, axes, seed=seed)
    return plans if decoding is None else [*plans, decoding]


def decoding_plan(
    specs: Sequence[TensorSpec], axes: Mapping[str, Axis], *, seed: int = 0
) -> CasePlan | None:
    """The case that decoding is proved by; None where the model has no caches that may be empty."""
    sizes = decoding_sizes(specs, axes)
    return None if sizes is None else _plan(case_decoding.NAME, sizes, case_decoding.MASK, seed)


def plan_further_cases(
    specs: Sequence[TensorSpec],
    axes: Mapping[str, Axis],
    *,
    seed: int = 0,
    caps: Mapping[str, int] | None = None,
) -> list[CasePlan]:
    """The cases that hurt, beside the first ones: masks, fills of a bias, magnitudes, sizes.

    Each is varied at one middling size with the others as usual, and magnitudes also together
    with the mask that leaves fewest keys.

    Args:
        specs: The inputs.
        axes: The axes.
        seed: What every case's own seed is made of.
        caps: Sizes that no case is to exceed, by axis.

    Raises:
        UsageError: If a cap is not an axis, or is below its minimum.
    """
    axes = capped(axes, caps or {})
    masked = _masked(specs)
    usual, at = _usual(masked), middle(axes)
    taken = list(first_sizes(axes).values())
    plans = [
        _plan(name, sizes, usual, seed)
        for name, sizes in further_sizes(axes).items()
        if sizes not in taken
    ]
    plans += [_plan(f"mask-{k}", at, k, seed) for k in FURTHER_MASKS if _some(k, masked)]
    if any(spec.role == "bias" for spec in specs):
        plans += [
            _plan(f"bias-{fill}-{kind}", at, kind, seed, fill=fill)
            for fill in FILLS[1:]
            for kind in ("random", "dead-row", "all-dead")
        ]
    magnitudes = [m for m in MAGNITUDES if m != "normal"] if _has_activations(specs) else []
    plans += [_plan(f"numbers-{m}", at, usual, seed, magnitude=m) for m in magnitudes]
    if masked:
        plans += [
            _plan(f"numbers-{m}-dead-row", at, "dead-row", seed, magnitude=m)
            for m in magnitudes
            if m in ("large", "overflow")
        ]
    return plans


def largest_plan(specs: Sequence[TensorSpec], sizes: Sizes, *, seed: int = 0) -> CasePlan:
    """The case of the largest sizes that a budget allows."""
    return _plan("largest", sizes, _usual(_masked(specs)), seed)


def middle(axes: Mapping[str, Axis]) -> Sizes:
    """The sizes at which masks and magnitudes are varied."""
    sizes = first_sizes(axes)
    return sizes.get("between", sizes.get("opt", next(iter(sizes.values()))))


def within_budget(
    plans: Sequence[CasePlan],
    specs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    most: int | None = None,
) -> tuple[list[CasePlan], list[str]]:
    """The smallest cases that fit the budget together, and what was left out, said."""
    kept: list[CasePlan] = []
    left_out: list[str] = []
    total = 0
    for plan in sorted(plans, key=lambda plan: plan.nbytes(specs, outputs)):
        size = plan.nbytes(specs, outputs)
        if most is not None and len(kept) >= most:
            left_out.append(f"{plan.name}: {most} cases were asked for")
        elif total + size > budget_bytes:
            left_out.append(f"{plan.name}: {size >> 20} MiB more than the budget leaves")
        else:
            kept.append(plan)
            total += size
    return kept, left_out


def _plan(
    name: str,
    sizes: Sizes,
    mask: str,
    seed: int,
    *,
    magnitude: str = "normal",
    fill: str = "-inf",
) -> CasePlan:
    return CasePlan(name, sizes, mask, zlib.crc32(name.encode()) ^ seed, magnitude, fill)


def _masked(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [spec for spec in specs if spec.role in ("mask", "bias")]


def _usual(masked: Sequence[TensorSpec]) -> str:
    return "random" if masked else "none"


def _some(kind: str, masked: Sequence[TensorSpec]) -> bool:
    return bool(masked) and applies(kind, masked)


def _has_activations(specs: Sequence[TensorSpec]) -> bool:
    return any(
        spec.role in ("activation", "cache") and numpy_dtype(spec.dtype).kind not in "biu"
        for spec in specs
    )
