"""A Finding: one check on one engine on one case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnport.export.bundle import Bundle
from attnport.export.records import Record

Status = Literal["passed", "failed", "not run"]
Check = Literal[
    "parity",
    "property",
    "decoding",
    "repeat",
    "fusion",
    "qkv",
    "causal",
    "kernels",
    "engine",
    "module",
    "latency",
    "baseline",
]
Number = float | int | str | bool | None | list[int]

GRAPH = "onnx"  # the engine of a Finding that is read from the graph alone


class Finding(Record):
    """What one check found.

    Attributes:
        model: The bundle's name.
        bundle: The bundle's hash.
        dtype: The bundle's dtype.
        engine: The kind of engine ("onnx" for what is read from the graph alone).
        check: The check's name.
        case: The case, the attention or the projection group that was looked at.
        required: Whether the verdict depends on it.
        status: "passed", "failed" or "not run"; never anything else.
        numbers: What was measured: errors, bounds, counts, coordinates. JSON has no word for a
            number that is not finite: it stands as "NaN", "Infinity" or "-Infinity".
        message: One sentence for people; where not passed, what is wrong and what to do.
    """

    model: str
    bundle: str
    dtype: str
    engine: str
    check: Check
    case: str
    required: bool
    status: Status
    numbers: dict[str, Number]
    message: str


class Obstacle(NamedTuple):
    """What kept an engine from being built or opened.

    Attributes:
        status: "not run" where the machine lacks something, "failed" where the engine is at fault.
        message: What is missing, or wrong, and what to do.
    """

    status: Status
    message: str


@dataclass(frozen=True)
class Subject:
    """What a check looks at: one engine made from one bundle.

    Attributes:
        model: The bundle's name.
        bundle: The bundle's hash.
        dtype: The bundle's dtype.
        engine: The kind of engine.
    """

    model: str
    bundle: str
    dtype: str
    engine: str

    @classmethod
    def of(cls, bundle: Bundle, engine: str = GRAPH) -> Subject:
        return cls(bundle.name, bundle.hash, bundle.dtype, engine)

    def finding(
        self,
        check: Check,
        case: str,
        status: Status,
        message: str,
        *,
        required: bool,
        numbers: Mapping[str, Number] | None = None,
    ) -> Finding:
        """A Finding about this engine, its numbers made fit for JSON."""
        return Finding(
            model=self.model,
            bundle=self.bundle,
            dtype=self.dtype,
            engine=self.engine,
            check=check,
            case=case,
            required=required,
            status=status,
            numbers={name: _for_json(number) for name, number in (numbers or {}).items()},
            message=message,
        )


def _for_json(number: Number) -> Number:
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return number
