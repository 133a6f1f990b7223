"""Generates the inputs of the cases: sizes from the axes, masks and numbers from the roles.

Everything follows from a seed, by numpy's PCG64; nothing here knows the module.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.export.arrays import numpy_dtype
from attnport.export.records import TensorSpec

DEFAULT_BUDGET_BYTES = 64 << 20
MASKS = ("visible", "causal", "right-padding", "left-padding", "random", "dead-row")


@dataclass(frozen=True)
class CasePlan:
    """A case that is to be made.

    Attributes:
        name: Such as "opt" or "between-causal".
        sizes: The size of each axis.
        mask: What masks and biases hide: one of MASKS, or "none" where there is no such input.
        seed: Of its random numbers.
    """

    name: str
    sizes: dict[str, int]
    mask: str
    seed: int

    def inputs(self, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """An array for each input, in its dtype."""
        rng = np.random.Generator(np.random.PCG64(self.seed))
        return {spec.name: _array(spec, self.sizes, self.mask, rng) for spec in specs}

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
    axes = _capped(axes, caps or {})
    masked = [spec for spec in specs if spec.role in ("mask", "bias")]
    sizes = _sizes(axes)
    plans = [_plan(name, at, "random" if masked else "none", seed) for name, at in sizes.items()]
    if masked:
        at = sizes.get("between", sizes["opt"])
        kinds = [kind for kind in MASKS if _applies(kind, masked)]
        plans += [_plan(f"between-{kind}", at, kind, seed) for kind in kinds]
    return plans


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


def _capped(axes: Mapping[str, Axis], caps: Mapping[str, int]) -> dict[str, Axis]:
    capped = dict(axes)
    for name, cap in caps.items():
        if name not in axes:
            raise UsageError(f"there is no axis {name!r} to cap; the axes are {', '.join(axes)}")
        axis = axes[name]
        if cap < axis.min:
            raise UsageError(f"axis {name} starts at {axis.min}: a cap of {cap} leaves no case")
        capped[name] = Axis(name, axis.min, min(axis.opt, cap), min(axis.max, cap))
    return capped


def _sizes(axes: Mapping[str, Axis]) -> dict[str, dict[str, int]]:
    """Named sizes: min, opt, max, one in between, and each axis alone at its minimum."""
    found = {
        "between": {
            name: _between(axis, index) for index, (name, axis) in enumerate(axes.items())
        },
        "min": {name: axis.min for name, axis in axes.items()},
        "opt": {name: axis.opt for name, axis in axes.items()},
        "max": {name: axis.max for name, axis in axes.items()},
    }
    for lowest in axes:
        found[f"{lowest}-{axes[lowest].min}"] = {
            name: axis.min if name == lowest else found["between"][name]
            for name, axis in axes.items()
        }
    unique: dict[tuple[tuple[str, int], ...], str] = {}
    for name, sizes in found.items():
        unique.setdefault(tuple(sorted(sizes.items())), name)
    return {name: found[name] for name in found if name in unique.values()}


def _between(axis: Axis, index: int) -> int:
    """A prime between min and opt, another one for each axis, where there is room for one."""
    primes = [n for n in range(max(2, axis.min + 1), max(axis.opt, axis.min + 1)) if _is_prime(n)]
    if not primes:
        return axis.opt
    return primes[(len(primes) // 2 + index) % len(primes)]


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, math.isqrt(number) + 1))


def _plan(name: str, sizes: dict[str, int], mask: str, seed: int) -> CasePlan:
    return CasePlan(name, sizes, mask, zlib.crc32(name.encode()) ^ seed)


def _applies(kind: str, masked: Sequence[TensorSpec]) -> bool:
    """Whether some mask has the axes for it: causality needs a row for each query."""
    return kind != "causal" or any(_rows_axis(spec) for spec in masked)


def _rows_axis(spec: TensorSpec) -> bool:
    """Whether the last two dimensions are queries and keys, not 1 (or the batch) and keys."""
    return len(spec.shape) >= 2 and spec.shape[-2] != 1 and _has_query_axis(spec)


def _has_query_axis(spec: TensorSpec) -> bool:
    return len(spec.shape) > 2 or spec.shape[-2] == spec.shape[-1]


def _array(
    spec: TensorSpec, sizes: Mapping[str, int], mask: str, rng: np.random.Generator
) -> np.ndarray:
    shape = tuple(_size(spec, dim, sizes) for dim in spec.shape)
    dtype = numpy_dtype(spec.dtype)
    if spec.role == "mask":
        return _visible(spec, shape, mask, rng).astype(dtype)
    if spec.role == "bias":
        hidden = ~_visible(spec, shape, mask, rng)
        return np.where(hidden, -np.inf, rng.standard_normal(shape)).astype(dtype)
    if spec.role == "token_ids":
        return rng.integers(0, spec.high or 2, shape).astype(dtype)
    if spec.role == "positions":
        return np.broadcast_to(np.arange(shape[-1]) if shape else 0, shape).astype(dtype)
    if spec.role == "lengths":
        return rng.integers(1, max(sizes.values(), default=1) + 1, shape).astype(dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _size(spec: TensorSpec, dim: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim not in sizes:
        raise UsageError(
            f"dimension {dim!r} of input {spec.name} is no axis ({', '.join(sizes)}): name it in "
            "dynamic_shapes and give its range in axes"
        )
    return sizes[dim]


def _visible(
    spec: TensorSpec, shape: tuple[int, ...], kind: str, rng: np.random.Generator
) -> np.ndarray:
    """A bool mask of a kind; True is visible. Kinds with no dead row keep a key for each query."""
    keys = shape[-1] if shape else 1
    rows = _rows_axis(spec)
    column = np.arange(keys)
    visible = np.ones(shape, bool)
    if kind == "causal" and rows:
        visible &= column <= np.arange(shape[-2])[:, None]
    elif kind in ("right-padding", "left-padding"):
        for number, index in enumerate(_batch_items(shape)):
            length = keys if number == 0 else int(rng.integers(1, keys + 1))
            row = column < length if kind == "right-padding" else column >= keys - length
            visible[index] = row
    elif kind in ("random", "dead-row"):
        visible = rng.random(shape) < 0.7
        visible[..., 0] = True
    if kind == "dead-row":
        item = visible[0] if len(shape) > 1 else visible
        if rows:
            item[..., 0, :] = False  # the first query of the first batch item
        else:
            item[...] = False  # every query of it
    return visible


def _batch_items(shape: tuple[int, ...]) -> Iterator[tuple[int, ...] | slice]:
    if len(shape) < 2:
        yield slice(None)
        return
    for item in range(shape[0]):
        yield (item,)
