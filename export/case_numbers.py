"""The numbers of a case: an array for each input, by its role, in its own dtype."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from attnport.errors import UsageError
from attnport.export.arrays import numpy_dtype
from attnport.export.case_masks import visible
from attnport.export.records import TensorSpec

# normal      variance 1, as after a LayerNorm
# growing     later tokens larger, as the root of their position: averages over more keys, as a causal
#             mask gives later tokens, stay as large as the first ones, which set the errors
# large       a softmax that is nearly one hot
# overflow    scores beyond the largest float16, where they are not scaled before the product
# constant    every element of a row alike, so that a LayerNorm divides by nothing but its epsilon
# one-hot     one element of a row is 1: reads the columns of the weights
# denormal    below the smallest normal number of the dtype
MAGNITUDES = ("normal", "growing", "large", "overflow", "constant", "one-hot", "denormal")
_FACTORS = {"large": 8.0, "overflow": 100.0}
_SENTINEL = -10000.0


def array(
    spec: TensorSpec,
    sizes: Mapping[str, int],
    *,
    mask: str,
    magnitude: str = "normal",
    fill: str = "-inf",
    rng: np.random.Generator,
) -> np.ndarray:
    """One input of a case.

    Args:
        spec: The input.
        sizes: The size of each axis.
        mask: What masks and biases hide; a kind of `case_masks`.
        magnitude: One of MAGNITUDES, for activations and caches.
        fill: How a bias hides; one of `case_masks.FILLS`.
        rng: Of what is drawn.

    Raises:
        UsageError: If a dimension has a name that is no axis.
    """
    shape = tuple(_size(spec, dim, sizes) for dim in spec.shape)
    dtype = numpy_dtype(spec.dtype)
    if spec.role == "mask":
        seen = visible(spec, shape, mask, rng)
        return (~seen if spec.hides_where_true else seen).astype(dtype)
    if spec.role == "bias":
        hidden = ~visible(spec, shape, mask, rng)
        return np.where(hidden, _fill(fill, dtype), rng.standard_normal(shape)).astype(dtype)
    if spec.role == "token_ids":
        return rng.integers(0, spec.high or 2, shape).astype(dtype)
    if spec.role == "positions":
        return _positions(spec, shape, sizes).astype(dtype)
    if spec.role == "write_at" and spec.room is not None:
        if mask == "prefix":  # what is written is what is seen: from the first row on
            return np.zeros(shape, dtype)
        room, rows = (_size(spec, dim, sizes) for dim in spec.room)
        return rng.integers(0, max(room - rows, 0) + 1, shape).astype(dtype)
    if spec.role == "lengths":
        return rng.integers(1, max(sizes.values(), default=1) + 1, shape).astype(dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return _activation(shape, dtype, magnitude, rng)


def _positions(spec: TensorSpec, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
    """0, 1, … or what comes after the tokens before; from 0 again where a table has no more."""
    start = sizes.get(spec.after, 0)
    found = np.arange(start, start + shape[-1]) if shape else np.array(start)
    return np.broadcast_to(found % spec.high if spec.high else found, shape)


def _activation(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], magnitude: str, rng: np.random.Generator
) -> np.ndarray:
    drawn = rng.standard_normal(shape)
    if magnitude == "constant" and shape:
        drawn = np.broadcast_to(drawn[..., :1], shape)
    elif magnitude == "growing" and len(shape) > 1:
        drawn = drawn * np.sqrt(np.arange(1, shape[-2] + 1) / max(shape[-2], 1))[:, None]
    elif magnitude == "one-hot" and shape:
        hot = rng.integers(0, shape[-1], (*shape[:-1], 1))
        drawn = (np.arange(shape[-1]) == hot).astype(np.float64)
    elif magnitude == "denormal":
        drawn = drawn * float(ml_dtypes.finfo(dtype).smallest_normal) / 4
    return np.asarray(drawn * _FACTORS.get(magnitude, 1.0)).astype(dtype)


def _fill(fill: str, dtype: np.dtype[np.generic]) -> float:
    if fill == "finfo-min":
        return float(ml_dtypes.finfo(dtype).min)
    return _SENTINEL if fill == "-10000" else -np.inf


def _size(spec: TensorSpec, dim: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim not in sizes:
        raise UsageError(
            f"dimension {dim!r} of input {spec.name} is no axis ({', '.join(sizes)}): name it in "
            "dynamic_shapes and give its range in axes"
        )
    return sizes[dim]
