"""The user's own cases: from a file of arrays, or from a Python generator.

A file holds one case, an array for each input by its name, or several, as `case/input`.
A generator yields {input: array}, or (name, {input: array}).
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from attnport.errors import AttnportError, InputError, UsageError
from attnport.export.arrays import load_arrays
from attnport.validate.extent import NamedInputs, OwnCases

SUFFIXES = (".npz", ".safetensors")


def cases_from_file(path: str | Path) -> OwnCases:
    """Reads a .npz or .safetensors file.

    Raises:
        UsageError: If it is neither, or cannot be read.
    """
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise UsageError(
            f"{file} is not a file of cases: give {' or '.join(SUFFIXES)}, or a generator as "
            "path.py:function"
        )
    if not file.is_file():
        raise UsageError(f"there is no file {file}: give the path of a file of cases")
    arrays = _npz(file) if file.suffix == ".npz" else _safetensors(file)
    if not arrays:
        raise UsageError(f"{file} holds no array: give an array for each input, by its name")
    grouped: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        case, _, given = name.rpartition("/")
        grouped.setdefault(case or file.stem, {})[given] = array
    return OwnCases(str(file), lambda: list(grouped.items()))


def cases_from_generator(origin: str, function: Callable[[], object]) -> OwnCases:
    """Calls a function that yields cases.

    Args:
        origin: What to call it in errors.
        function: Takes nothing; yields {input: array} or (name, {input: array}).
    """
    return OwnCases(origin, lambda: _generated(origin, function))


def _generated(origin: str, function: Callable[[], object]) -> Iterator[NamedInputs]:
    try:
        made = function()
        if not isinstance(made, Iterable):
            raise InputError(f"{origin} returned {type(made).__name__}: yield {{input: array}}")
        number = -1
        for number, one in enumerate(made):
            yield _named(origin, number, one)
        if number < 0:
            raise InputError(f"{origin} yields no case: yield {{input: array}}")
    except AttnportError:
        raise
    except Exception as err:  # the user's own code
        raise InputError(f"{origin} raised {type(err).__name__}: {err}") from err


def _named(origin: str, number: int, one: object) -> NamedInputs:
    name, inputs = one if isinstance(one, tuple) and len(one) == 2 else (str(number), one)
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"{origin} yields {type(inputs).__name__}: yield {{input: array}}, or "
            "(name, {input: array})"
        )
    return str(name), {str(key): np.asarray(array) for key, array in inputs.items()}


def _npz(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as err:
        raise UsageError(f"{file} cannot be read as .npz: {err}") from err


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_arrays(file)
    except AttnportError as err:
        raise UsageError(str(err)) from err
