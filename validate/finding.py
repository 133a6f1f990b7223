"""A Finding: one check on one engine on one case."""

from __future__ import annotations

from typing import Literal

from attnport.export.records import Record

Status = Literal["passed", "failed", "not run"]
Check = Literal["parity", "fusion", "qkv", "causal", "kernels", "engine"]
Number = float | int | str | bool | None | list[int]


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
        numbers: What was measured: errors, bounds, counts, coordinates.
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
