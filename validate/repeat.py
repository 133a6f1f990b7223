"""Repetition: whether running, opening and building again give the same bits, or how far apart.

A difference is no failure as long as the second result is within the bound of parity, too: GPUs may
add in another order. It is stated, since whoever compares two runs must know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from attnport.engines.engine import Engine
from attnport.errors import InternalError
from attnport.export.bundle import Bundle, Case
from attnport.validate.finding import Finding, Number, Subject
from attnport.validate.judgement import judge_outputs
from attnport.validate.properties import worst


def check_rerun(engine: Engine, bundle: Bundle, case: Case, *, required: bool) -> Finding:
    """Runs the same inputs twice in one engine."""
    return _check("rerun", lambda: (engine.run(case.inputs), engine.run(case.inputs)),
                  engine.kind, bundle, case, required)  # fmt: skip


def check_reopened(
    engine: Engine,
    reopen: Callable[[], Engine],
    bundle: Bundle,
    case: Case,
    *,
    required: bool,
) -> Finding:
    """Runs the same inputs in the engine and in another one, opened from the same files."""

    def twice() -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        first = engine.run(case.inputs)
        with reopen() as other:
            return first, other.run(case.inputs)

    return _check("reopened", twice, engine.kind, bundle, case, required)


def same_plan(bundle: Bundle, kind: str, first: str | None, second: str | None) -> Finding:
    """States whether building again gave the same plan; never required, since builders may time."""
    same = first is not None and first == second
    message = (
        "building again gave the same plan, bit for bit"
        if same
        else "building again gave another plan: each is judged by its own report, not by this one"
    )
    numbers: dict[str, Number] = {"same_bits": same, "first": first, "second": second}
    return Subject.of(bundle, kind).finding(
        "repeat", "rebuild", "passed" if same else "not run", message, required=False,
        numbers=numbers,
    )  # fmt: skip


def _check(
    name: str,
    twice: Callable[[], tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]],
    kind: str,
    bundle: Bundle,
    case: Case,
    required: bool,
) -> Finding:
    subject = Subject.of(bundle, kind)
    label = f"{name}/{case.record.name}"
    try:
        first, second = twice()
    except InternalError:
        raise
    except Exception as err:  # whatever the engine's own library raises
        # What keeps an engine from running at all is told by its parity.
        return subject.finding("repeat", label, "not run", str(err), required=False)
    apart = _apart(first, second)
    if apart == 0:
        return subject.finding(
            "repeat", label, "passed", "the same bits", required=required,
            numbers={"same_bits": True},
        )  # fmt: skip
    judged = worst(list(judge_outputs(second, bundle.manifest.outputs, case).values()))
    within = "within" if judged.status == "passed" else "and the second is not within"
    return subject.finding(
        "repeat",
        label,
        judged.status,
        f"the second result differs by up to {apart:.3g}, {within} the bound of parity",
        required=required and judged.counts,
        numbers={"same_bits": False, "difference_max": apart},
    )


def _apart(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> float:
    """The largest difference; 0 only for the same bits."""
    most = 0.0
    for name, array in first.items():
        other = second.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            return float("inf")
        if array.tobytes() != other.tobytes():
            difference = np.abs(array.astype(np.float64) - other.astype(np.float64))
            largest = float(np.max(difference, initial=0.0))
            most = max(most, largest if largest > 0 else float(np.finfo(np.float64).tiny))
    return most
