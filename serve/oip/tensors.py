"""Arrays from what a message holds, and back: JSON values, or bytes in row-major order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from attnport.export.arrays import numpy_dtype
from attnport.serve.refusal import bad_request

_WHOLE: set[type] = {int}
_REAL: set[type] = {int, float}


def array_from_bytes(
    block: memoryview, shape: tuple[int, ...], dtype: str, where: str
) -> np.ndarray:
    """A tensor from its bytes, which it may share; it is not to be written to.

    Args:
        block: The bytes, little-endian and in row-major order.
        shape: Its sizes.
        dtype: As records name it.
        where: What it is called in a refusal.

    Raises:
        RefusedError: If there are more or fewer bytes than the shape takes.
    """
    kind = numpy_dtype(dtype)
    needed = math.prod(shape) * kind.itemsize
    if len(block) != needed:
        raise bad_request(
            f"{where} comes with {len(block)} bytes, and its shape {list(shape)} of {dtype} takes "
            f"{needed if needed < 1 << 63 else 'far more'}: give exactly those"
        )
    if dtype == "bool" and needed and np.frombuffer(block, np.uint8).max() > 1:
        raise bad_request(f"{where} is bool and holds a byte that is neither 0 nor 1")
    array = _shaped(np.frombuffer(block, kind), shape, where)
    return array if array.flags.aligned else array.copy()


def array_from_json(
    data: Sequence[Any], shape: tuple[int, ...], dtype: str, where: str
) -> np.ndarray:
    """A tensor from JSON values, flat or nested as its shape says.

    Raises:
        RefusedError: If the values are too many or too few, nested otherwise, or of another type.
    """
    flat = _flattened(data, shape, where)
    needed = math.prod(shape)
    if len(flat) != needed:
        raise bad_request(
            f"{where} has {len(flat)} values, and its shape {list(shape)} takes "
            f"{needed if needed < 1 << 63 else 'far more'}: give exactly those"
        )
    kind = numpy_dtype(dtype)
    found = set(map(type, flat))
    if dtype == "bool":
        _require_types(found, {bool}, "true or false", where)
        return _shaped(np.array(flat, bool), shape, where)
    if kind.kind in "iu":
        _require_types(found, _WHOLE, "whole numbers", where)
        return _shaped(_whole_numbers(flat, kind, where), shape, where)
    _require_types(found, _REAL, "numbers", where)
    return _shaped(_real_numbers(flat, kind, where), shape, where)


def json_from_array(array: np.ndarray) -> list[Any]:
    """The values, flat in row-major order; half precision as the numbers it stands for."""
    if array.dtype.kind not in "biuf":  # ml_dtypes' bfloat16 is of kind V
        array = array.astype(np.float32)
    values: list[Any] = array.ravel().tolist()
    return values


def bytes_from_array(array: np.ndarray) -> memoryview:
    """The bytes in row-major order, without a copy where they lie so."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def _shaped(array: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    try:
        return array.reshape(shape)
    except ValueError as err:  # of no elements, and yet too large: [0, 2147483647, 2147483647, …]
        raise bad_request(f"the shape {list(shape)} of {where} is too large") from err


def _flattened(data: Sequence[Any], shape: tuple[int, ...], where: str) -> Sequence[Any]:
    dims = [len(data)]
    flat = data
    while flat and isinstance(flat[0], list):
        if len(dims) > len(shape):
            break  # nested deeper than the shape is long: refused below
        widths = {len(part) if isinstance(part, list) else -1 for part in flat}
        if len(widths) != 1:
            raise bad_request(f"the data of {where} is nested unevenly: give it flat, row-major")
        dims.append(widths.pop())
        flat = list(chain.from_iterable(flat))
    if len(dims) > 1 and tuple(dims) != shape:
        raise bad_request(
            f"the data of {where} is nested as {dims[:8]}, and its shape is {list(shape)}: give it "
            "flat, or nested as the shape"
        )
    return flat


def _require_types(found: set[type], allowed: set[type], what: str, where: str) -> None:
    if not found <= allowed:
        names = ", ".join(sorted(_JSON_NAMES.get(kind, "null") for kind in found - allowed))
        raise bad_request(f"the data of {where} holds {names}: give {what}")


_JSON_NAMES = {
    str: "a string",
    bool: "true or false",
    float: "a fraction",
    int: "a whole number",
    list: "a list",
    dict: "an object",
}


def _whole_numbers(flat: Sequence[int], kind: np.dtype[Any], where: str) -> np.ndarray:
    try:
        wide = np.array(flat, np.int64)
        if wide.size and not (
            wide.min() >= np.iinfo(kind).min and wide.max() <= np.iinfo(kind).max
        ):
            raise OverflowError
    except OverflowError as err:
        raise bad_request(f"the data of {where} holds a number beyond {kind}") from err
    return wide.astype(kind)


def _real_numbers(flat: Sequence[float], kind: np.dtype[Any], where: str) -> np.ndarray:
    try:
        wide = np.array(flat, np.float64)
    except OverflowError as err:  # a whole number of more than 308 digits
        raise bad_request(f"the data of {where} holds a number beyond {kind}") from err
    with np.errstate(over="ignore", under="ignore"):
        array = wide.astype(kind)
    if not np.array_equal(np.isinf(array.astype(np.float64)), np.isinf(wide)):
        raise bad_request(f"the data of {where} holds a number beyond {kind}")
    return array
