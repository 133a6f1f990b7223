"""Named arrays on disk, as safetensors, bfloat16 included (through ml_dtypes)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from attnport.errors import BundleError

_DTYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(name)
    for name in ("float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of a name used in records; "bfloat16" is ml_dtypes'."""
    return _DTYPES[name]


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads arrays written by `save_arrays`.

    Raises:
        BundleError: If the file is not whole.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as err:
        raise BundleError(f"{path} cannot be read as safetensors: {err}") from err
