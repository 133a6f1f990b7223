"""Latency as a requirement: the ratio to the fastest torch form, with its confidence interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnport.export.bundle import Bundle
from attnport.validate.finding import Finding, Number, Status, Subject
from attnport.validate.report import Measurement
from attnport.validate.requirements import Requirements


def check_latency(
    bundle: Bundle, measurements: Iterable[Measurement], require: Requirements
) -> Iterator[Finding]:
    """One Finding for each kind whose latency is required.

    Args:
        bundle: What was measured.
        measurements: All of the report's; those of other bundles are passed over.
        require: The requirements.
    """
    mine = {
        m.engine: m
        for m in measurements
        if m.kind == "latency" and m.bundle == bundle.hash and not m.note.startswith("A/A test")
    }
    for kind, most in require.latency.items():
        status, message, numbers = _judge(mine.get(kind), most)
        yield Subject.of(bundle, kind).finding(
            "latency", "ratio", status, message, required=True, numbers=numbers
        )


def _judge(measured: Measurement | None, most: float) -> tuple[Status, str, dict[str, Number]]:
    if measured is None:
        return "not run", "latency was not measured: run with --latency", {"maximum": most}
    found = {name: measured.values.get(name) for name in ("ratio", "ratio_low", "ratio_high")}
    numbers: dict[str, Number] = {**found, "maximum": most}
    low, high = found["ratio_low"], found["ratio_high"]
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        why = measured.note or "there is no torch form to compare with"
        return "not run", f"no ratio was measured ({why}): measure a torch engine, too", numbers
    against = measured.values.get("reference")
    said = f"{found['ratio']} times {against} ({low} to {high}, 95%), at most {most:g} required"
    if high <= most:
        return "passed", said, numbers
    if low > most:
        return "failed", f"{said}: the whole interval is above", numbers
    return "not run", f"{said}: the interval holds both, so measure longer or allow more", numbers
