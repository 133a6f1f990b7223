"""Which sizes the cases have: from the axes alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from attnport.axes import Axis, plain_axes, sizes_with_sums, with_sums
from attnport.errors import UsageError

Sizes = dict[str, int]


def capped(axes: Mapping[str, Axis], caps: Mapping[str, int]) -> dict[str, Axis]:
    """The axes, none above its cap.

    Raises:
        UsageError: If a cap is not an axis, or is below its minimum.
    """
    found = dict(axes)
    for name, cap in caps.items():
        if name not in axes:
            raise UsageError(f"there is no axis {name!r} to cap; the axes are {', '.join(axes)}")
        axis = axes[name]
        if axis.terms:
            raise UsageError(f"axis {name} follows from others ({axis.rule}): cap those")
        if cap < axis.min:
            raise UsageError(f"axis {name} starts at {axis.min}: a cap of {cap} leaves no case")
        found[name] = Axis(name, axis.min, min(axis.opt, cap), min(axis.max, cap))
    return with_sums(found)


def first_sizes(axes: Mapping[str, Axis]) -> dict[str, Sizes]:
    """Named sizes: min, opt, max, one in between, and each axis alone at its minimum.

    An axis that may be empty is alone at 1, too.
    """
    plain = plain_axes(axes)
    between = {name: _between(axis, place) for place, (name, axis) in enumerate(plain.items())}
    found = {
        "between": between,
        "min": {name: axis.min for name, axis in plain.items()},
        "opt": {name: axis.opt for name, axis in plain.items()},
        "max": {name: axis.max for name, axis in plain.items()},
    }
    for alone, axis in plain.items():
        found |= {
            f"{alone}-{size}": {**between, alone: size} for size in (axis.min, 1) if size in axis
        }
    return _distinct(found, axes)


def further_sizes(axes: Mapping[str, Axis]) -> dict[str, Sizes]:
    """A prime beyond opt, one just above min, and each axis alone at its maximum and at opt ± 1."""
    plain, between = plain_axes(axes), first_sizes(axes)["between"]
    found = {
        "low-primes": {name: _prime_above(axis.min, axis.max) for name, axis in plain.items()},
        "high-primes": {name: _prime_above(axis.opt, axis.max) for name, axis in plain.items()},
    }
    for alone, axis in plain.items():
        for size in (axis.opt - 1, axis.opt + 1, axis.max):
            if axis.min <= size <= axis.max:
                found[f"{alone}-{size}"] = {**between, alone: size}
    return {name: sizes for name, sizes in _distinct(found, axes).items() if sizes != between}


def largest_sizes(axes: Mapping[str, Axis], fits: Callable[[Sizes], bool]) -> Sizes | None:
    """The largest sizes that fit, every axis the same part of its way from min to max.

    Args:
        axes: The axes.
        fits: Whether a case of these sizes fits the budget; larger ones fit less.

    Returns:
        The sizes, or None where not even the smallest fit.
    """

    def at(part: float) -> Sizes:
        plain = plain_axes(axes)
        return sizes_with_sums(
            axes, {name: _part_of_the_way(axis, part) for name, axis in plain.items()}
        )

    if fits(at(1.0)):
        return at(1.0)
    if not fits(at(0.0)):
        return None
    low, high = 0.0, 1.0
    while at(low) != at(high) and high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return at(low)


def _part_of_the_way(axis: Axis, part: float) -> int:
    low, high = max(axis.min, 1), max(axis.max, 1)
    size = round(float(low * (high / low) ** part))
    return min(max(size, axis.min), axis.max)


def _distinct(found: Mapping[str, Sizes], axes: Mapping[str, Axis]) -> dict[str, Sizes]:
    """Each set of sizes once, under its first name, with the sizes of the derived axes."""
    unique: dict[tuple[tuple[str, int], ...], str] = {}
    for name, sizes in found.items():
        unique.setdefault(tuple(sorted(sizes.items())), name)
    return {name: sizes_with_sums(axes, found[name]) for name in found if name in unique.values()}


def _between(axis: Axis, place: int) -> int:
    """A prime between min and opt, another one for each axis, where there is room for one."""
    primes = [n for n in range(max(2, axis.min + 1), max(axis.opt, axis.min + 1)) if _is_prime(n)]
    if not primes:
        return axis.opt
    return primes[(len(primes) // 2 + place) % len(primes)]


def _prime_above(size: int, most: int) -> int:
    return next((n for n in range(max(size + 1, 2), most + 1) if _is_prime(n)), most)


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, math.isqrt(number) + 1))
