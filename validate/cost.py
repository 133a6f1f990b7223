"""Measurements that are not latencies: what a build cost, and what was not measured and why."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.engines.plan import EnginePlan
from attnport.export.bundle import Bundle
from attnport.validate.report import Measurement


def build_cost(bundle: Bundle, plan: EnginePlan) -> Iterator[Measurement]:
    """What a build cost; nothing for engines that run the module or the graph as they are.

    Args:
        bundle: What the plan was built from.
        plan: The plan.
    """
    if plan.path is None or plan.plan_sha256 is None:
        return
    yield Measurement(
        kind="build",
        model=bundle.name,
        bundle=bundle.hash,
        dtype=bundle.dtype,
        engine=plan.kind,
        case="build",
        values={
            # What was measured in an earlier run is not a figure of this one.
            "build_seconds": None if plan.cached else plan.build_seconds,
            "peak_memory_bytes": None if plan.cached else plan.peak_memory_bytes,
            "plan_bytes": plan.path.stat().st_size if plan.path.is_file() else None,
            "kernels": plan.fusion.kernel_count if plan.fusion else None,
        },
        note="the plan was found, not built in this run" if plan.cached else "",
    )


def not_measured(bundle: Bundle, kind: str, reason: str) -> Measurement:
    """Says of an engine that its latency was not measured; it then has no values."""
    return Measurement(
        kind="latency",
        model=bundle.name,
        bundle=bundle.hash,
        dtype=bundle.dtype,
        engine=kind,
        case="latency",
        values={},
        note=f"not measured: {reason}",
    )
