"""A split bundle: all its ranks together against the module that the whole one came from.

Parity is judged on the cases of the whole bundle, of which the ranks are fed their parts. Plans of
ranks that were built are judged for fusion, and for having a collective for each sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from attnport.engines.kinds import availability, engine_kind
from attnport.engines.plan import EnginePlan
from attnport.engines.plan_file import load_plan, plan_path
from attnport.engines.sharded.plan_layers import layers_of_sums
from attnport.engines.sharded.rank import DEFAULT_START_SECONDS, DEFAULT_TIMEOUT_SECONDS
from attnport.engines.sharded.sharded_engine import ShardedEngine
from attnport.errors import (
    AttnportError,
    EngineUnavailableError,
    InternalError,
    UnsupportedDtypeError,
    UsageError,
)
from attnport.export.bundle import Bundle
from attnport.export.shard.sharded import ShardedBundle
from attnport.validate.coverage import COVERAGE
from attnport.validate.finding import Finding, Obstacle, Subject
from attnport.validate.fusion import check_causal, check_fusion
from attnport.validate.machine import this_machine
from attnport.validate.progress import Progress, Steps
from attnport.validate.prove_engine import Bench, judge_engine
from attnport.validate.report import Report
from attnport.validate.reproducer import Reproducers
from attnport.validate.requirements import Requirements
from attnport.validate.stored_case import shipped_cases

DEVICES = {"ort-cpu": "cpu", "ort-cuda": "cuda"}
SUMS = "sums over the ranks"  # the case of the Finding about a plan's collectives


@dataclass(frozen=True)
class RunOptions:
    """How the ranks are run.

    Attributes:
        timeout_seconds: How long a sum waits for the slowest rank.
        start_seconds: How long the start may take.
        threads: CPU threads of one rank; None leaves it to ONNX Runtime.
    """

    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    start_seconds: float = DEFAULT_START_SECONDS
    threads: int | None = None


def prove_sharded(
    sharded: ShardedBundle,
    engines: Sequence[str],
    *,
    require: Requirements | None = None,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Proves a split bundle on this machine, starting a process for each rank.

    Args:
        sharded: The split bundle.
        engines: "ort-cpu" or "ort-cuda", which run; "tensorrt-rtx" or "tensorrt", whose plans of
            the ranks are read.
        require: What the verdict depends on.
        options: How the ranks are run.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        UsageError: If a kind does not exist, or cannot be split.
        BundleError: If a case or a plan cannot be read.
    """
    require, options = require or Requirements(), options or RunOptions()
    kinds = tuple(dict.fromkeys((*engines, *require.kinds())))
    for kind in kinds:
        if kind not in DEVICES and not engine_kind(kind).builds_plan:
            raise UsageError(
                f"{kind} runs no split bundle: use {', '.join(DEVICES)}, or tensorrt-rtx and "
                "tensorrt for the ranks' plans"
            )
    reference = sharded.reference()
    steps = Steps(progress, len(kinds) * (1 + len(reference.manifest.cases)))
    nothing_kept = Reproducers(None, reference)
    bench = Bench(reference, shipped_cases(reference), {}, nothing_kept, steps.begin)
    findings: list[Finding] = []
    for kind in kinds:
        steps.begin(f"starting {kind} on {sharded.count} ranks")
        if kind in DEVICES:
            findings += _run(sharded, kind, bench, require, options)
        else:
            for rank in range(sharded.count):
                findings += _of_plan(sharded, rank, kind, require)
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=this_machine(),
        findings=tuple(findings),
        measurements=(),
    )


def _run(
    sharded: ShardedBundle, kind: str, bench: Bench, require: Requirements, options: RunOptions
) -> list[Finding]:
    lack = availability(kind)
    if lack:
        return [_not_run(sharded, kind, bench.bundle, require, Obstacle("not run", lack))]
    try:
        with ShardedEngine(
            sharded,
            device=DEVICES[kind],
            timeout_seconds=options.timeout_seconds,
            start_seconds=options.start_seconds,
            threads=options.threads,
        ) as engine:
            required = require.parity_of(kind, runnable=True)
            return judge_engine(engine, None, bench, required=required)
    except InternalError:
        raise
    except (AttnportError, MemoryError) as err:
        return [_not_run(sharded, kind, bench.bundle, require, _obstacle(err))]


def _not_run(
    sharded: ShardedBundle,
    kind: str,
    reference: Bundle,
    require: Requirements,
    obstacle: Obstacle,
) -> Finding:
    required = require.parity_of(kind, runnable=obstacle.status == "failed")
    subject = Subject.of(reference, f"{kind}-{sharded.count}-ranks")
    return subject.finding("parity", COVERAGE, *obstacle, required=required)


def _obstacle(error: Exception) -> Obstacle:
    """A rank that dies is a fault; a dtype without kernels is what this machine lacks."""
    lacking = isinstance(error, UnsupportedDtypeError | MemoryError)
    died = isinstance(error, EngineUnavailableError)
    return Obstacle("not run" if lacking and not died else "failed", str(error))


def _of_plan(
    sharded: ShardedBundle, rank: int, kind: str, require: Requirements
) -> Iterator[Finding]:
    """What a rank's plan tells of its attentions and sums."""
    bundle = sharded.rank(rank)
    subject = Subject.of(bundle, kind)
    plan: EnginePlan | None = None
    absent = Obstacle(
        "not run", f"rank {rank} has no plan: `attnport build {bundle.path} --engine {kind}`"
    )
    if plan_path(bundle.path, kind).exists():
        plan = load_plan(plan_path(bundle.path, kind))
        if plan.bundle_hash != bundle.hash:
            plan, absent = None, Obstacle("failed", f"{bundle.path}: its plan is of another split")
    fusion = None if plan is None else plan.fusion
    attentions = bundle.manifest.attentions
    needed = require.fusion_of(kind, bundle.dtype)
    yield from check_fusion(subject, attentions, fusion, required=needed, absent=absent)
    needed = require.causal_of(kind, bundle.dtype)
    yield from check_causal(subject, attentions, fusion, required=needed, absent=absent)
    yield _sums(sharded, subject, plan, absent)


def _sums(
    sharded: ShardedBundle, subject: Subject, plan: EnginePlan | None, absent: Obstacle
) -> Finding:
    """Whether the plan has a collective for each sum: without one it gives a part for the whole."""
    if plan is None or plan.fusion is None:
        return subject.finding("kernels", SUMS, *absent, required=True)
    names = [one.name for one in sharded.manifest.reductions]
    found = layers_of_sums(plan.fusion.layers, names)
    missing = [name for name in names if name not in found]
    numbers = {"sums": len(names), "collectives": len(found)}
    if missing:
        message = f"the plan has no collective for {', '.join(missing)}: build it again"
        return subject.finding("kernels", SUMS, "failed", message, required=True, numbers=numbers)
    said = f"{len(names)} sums over {sharded.count} ranks: {', '.join(found.values())}"
    return subject.finding("kernels", SUMS, "passed", said, required=True, numbers=numbers)
