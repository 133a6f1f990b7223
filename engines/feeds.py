"""Checks what is given to an engine against what the bundle declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.axes import Axis
from attnport.errors import InputError
from attnport.export.arrays import numpy_dtype
from attnport.export.records import TensorSpec

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Input:
    """One input, with its dtype looked up and its dimensions sorted once."""

    spec: TensorSpec
    dtype: np.dtype[np.generic]
    rank: int
    fixed: tuple[tuple[int, int], ...]
    named: tuple[tuple[int, str], ...]


def compile_check(
    inputs: Sequence[TensorSpec], axes: Mapping[str, Axis]
) -> Callable[[Feeds], dict[str, np.ndarray]]:
    """Makes `check_feeds` for one engine, with everything looked up beforehand.

    Args:
        inputs: The engine's inputs.
        axes: The ranges of their symbolic axes; an axis without a range may have any size.

    Returns:
        A function that gives back the arrays, in the engine's order and C-contiguous, or raises
        InputError.
    """
    compiled = tuple(_compile(spec) for spec in inputs)
    names = {spec.name for spec in inputs}
    present = {name for item in compiled for _, name in item.named}
    sums = tuple(
        axis
        for axis in axes.values()
        if axis.terms and {axis.name, *(t for t in axis.terms if isinstance(t, str))} <= present
    )
    limited = tuple(item.spec for item in compiled if item.spec.high or item.spec.room)

    def check(feeds: Feeds) -> dict[str, np.ndarray]:
        if feeds.keys() != names:
            raise InputError(_wrong_names(feeds, inputs))
        sizes: dict[str, int] = {}
        checked = {}
        for item in compiled:
            array = feeds[item.spec.name]
            if type(array) is not np.ndarray or array.dtype != item.dtype:
                raise InputError(_wrong_dtype(item, array))
            shape = array.shape
            if len(shape) != item.rank or any(shape[at] != size for at, size in item.fixed):
                raise InputError(_wrong_shape(item, array, axes))
            for at, name in item.named:
                if sizes.setdefault(name, shape[at]) != shape[at]:
                    raise InputError(_unequal(item, at, sizes[name], shape))
                if name in axes and shape[at] not in axes[name]:
                    raise InputError(_out_of_range(item, at, axes[name], shape))
            checked[item.spec.name] = (
                array if array.flags.c_contiguous else np.ascontiguousarray(array)
            )
        for axis in sums:
            if axis.size_among(sizes) != sizes[axis.name]:
                raise InputError(_contradicts(axis, sizes, inputs))
        for spec in limited:
            _require_within(spec, checked[spec.name], sizes)
        return checked

    return check


def check_feeds(
    feeds: Feeds, inputs: Sequence[TensorSpec], axes: Mapping[str, Axis]
) -> dict[str, np.ndarray]:
    """Checks feeds once; an engine that runs often keeps what `compile_check` returns.

    Raises:
        InputError: If a name, dtype, rank or size does not fit.
    """
    return compile_check(inputs, axes)(feeds)


def _compile(spec: TensorSpec) -> _Input:
    dims = tuple(enumerate(spec.shape))
    return _Input(
        spec=spec,
        dtype=numpy_dtype(spec.dtype),
        rank=len(spec.shape),
        fixed=tuple((at, dim) for at, dim in dims if isinstance(dim, int)),
        named=tuple((at, dim) for at, dim in dims if isinstance(dim, str)),
    )


def _wrong_names(feeds: Feeds, inputs: Sequence[TensorSpec]) -> str:
    names = [spec.name for spec in inputs]
    missing = ", ".join(name for name in names if name not in feeds)
    unknown = ", ".join(str(name) for name in feeds if name not in names)
    problems = [f"missing: {missing}"] * bool(missing) + [f"unknown: {unknown}"] * bool(unknown)
    return f"the inputs do not fit ({'; '.join(problems)}): give exactly {', '.join(names)}"


def _wrong_dtype(item: _Input, array: object) -> str:
    name, dtype = item.spec.name, item.spec.dtype
    if not isinstance(array, np.ndarray):
        return f"input {name!r} is a {type(array).__name__}: give a numpy array of {dtype}"
    return f"input {name!r} is {array.dtype}, and the graph takes {dtype}: convert it"


def _wrong_shape(item: _Input, array: np.ndarray, axes: Mapping[str, Axis]) -> str:
    return f"input {item.spec.name!r} has shape {array.shape}: give {_shape_text(item.spec.shape, axes)}"


def _shape_text(shape: Sequence[int | str], axes: Mapping[str, Axis]) -> str:
    """Such as `(batch 1..8, seq 1..512, 512)`."""
    dims = [
        f"{dim} {axes[dim].min}..{axes[dim].max}"
        if isinstance(dim, str) and dim in axes
        else f"{dim}"
        for dim in shape
    ]
    return f"({', '.join(dims)})"


def _unequal(item: _Input, at: int, expected: int, shape: tuple[int, ...]) -> str:
    return (
        f"input {item.spec.name!r} has size {shape[at]} at dimension {at} ({item.spec.shape[at]}), "
        f"and {expected} was given before for that axis: give it one size everywhere"
    )


def _contradicts(axis: Axis, sizes: Mapping[str, int], inputs: Sequence[TensorSpec]) -> str:
    """Such as `total = past + seq: past is 4 (past_key_0), seq 1 (x), so total is 5, …`."""

    def place(name: str) -> str:
        return next(spec.name for spec in inputs if name in spec.shape)

    parts = ", ".join(f"{t} is {sizes[t]} ({place(t)})" for t in axis.terms if isinstance(t, str))
    return (
        f"input {place(axis.name)!r} has {axis.name} {sizes[axis.name]}, and {axis.rule}: {parts}, "
        f"so give it {axis.size_among(sizes)} there"
    )


def _require_within(spec: TensorSpec, array: np.ndarray, sizes: Mapping[str, int]) -> None:
    """Refuses indices that a table or a cache has no place for; engines read beside it instead."""
    if not array.size:
        return
    low, high = int(array.min()), int(array.max())
    if spec.room is None:
        most = (spec.high or 0) - 1
        if low < 0 or high > most:
            raise InputError(
                f"input {spec.name!r} holds {low if low < 0 else high}, and the graph's table "
                f"goes from 0 to {most}: give {spec.role.replace('_', ' ')} within it"
            )
        return
    length, rows = (dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in spec.room)
    if low < 0 or high + rows > length:
        raise InputError(
            f"input {spec.name!r} holds {low if low < 0 else high}, and {rows} rows from there do "
            f"not fit a cache of {length}: the cache is full, or give 0 to {length - rows}"
        )


def _out_of_range(item: _Input, at: int, axis: Axis, shape: tuple[int, ...]) -> str:
    return (
        f"input {item.spec.name!r} has size {shape[at]} at dimension {at}: axis {axis.name!r} takes "
        f"{axis.min} to {axis.max}; export again with a wider range if you need it"
    )
