"""Options that several commands share, and their values as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from attnport.errors import UsageError

BundlePath = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="The folder that `attnport export` wrote.")
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        "-e",
        metavar="KIND",
        help="A kind of engine, such as ort-cpu or tensorrt-rtx; may be repeated. "
        "`attnport doctor` lists them.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def pairs(texts: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """Reads options of the form KEY=VALUE.

    Raises:
        UsageError: If one is of another form, or a key is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise UsageError(f"{option} {text!r} is not KEY=VALUE: write {option} {example}")
        if key in found:
            raise UsageError(f"{option} gives {key} twice: give it once")
        found[key] = value
    return found


def whole_numbers(values: dict[str, str], option: str) -> dict[str, int]:
    """The values as numbers.

    Raises:
        UsageError: If one is not a whole number of 0 or more.
    """
    for key, value in values.items():
        if not value.isdecimal():
            raise UsageError(f"{option} {key}={value}: {value!r} is not a whole number")
    return {key: int(value) for key, value in values.items()}


def known_engines(kinds: Sequence[str] | None) -> list[str]:
    """The kinds without repetitions, checked before any work is done.

    Raises:
        UsageError: If one does not exist.
    """
    from attnport.engines.kinds import engine_kind

    return [engine_kind(kind).name for kind in dict.fromkeys(kinds or ())]
