"""From a bundle to a Report: build and open each engine, run every case, judge, measure."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.engines.build import build_engine
from attnport.engines.kinds import availability, engine_kind
from attnport.engines.open import open_engine
from attnport.engines.plan import EnginePlan
from attnport.errors import (
    AttnportError,
    EngineUnavailableError,
    InternalError,
    UnsupportedDtypeError,
    UsageError,
)
from attnport.export.bundle import Bundle
from attnport.export.records import Inspection
from attnport.validate.cost import build_cost, not_measured
from attnport.validate.coverage import COVERAGE
from attnport.validate.extent import Extent
from attnport.validate.finding import GRAPH, Finding, Obstacle, Subject
from attnport.validate.fusion import check_causal, check_fusion, check_kernels
from attnport.validate.latency_gate import check_latency
from attnport.validate.machine import this_machine
from attnport.validate.progress import Progress, Steps
from attnport.validate.prove_cases import with_further_cases
from attnport.validate.prove_engine import Bench, judge_engine
from attnport.validate.qkv import check_qkv_in_graph, check_qkv_in_plan
from attnport.validate.repeat import same_plan
from attnport.validate.report import Measurement, Report
from attnport.validate.reproducer import Reproducers
from attnport.validate.requirements import ALL_RUNNABLE, Requirements
from attnport.validate.stored_case import shipped_cases

if TYPE_CHECKING:
    import torch


@dataclass
class _Run:
    """One call of `prove`, and what it has found so far."""

    bundle: Bundle
    module: torch.nn.Module | None
    require: Requirements
    plans: Mapping[str, EnginePlan]
    inspection: Inspection
    steps: Steps
    extent: Extent
    bench: Bench
    findings: list[Finding] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)


def prove(
    bundle: Bundle,
    engines: Sequence[str],
    *,
    module: torch.nn.Module | None = None,
    require: Requirements | None = None,
    plans: Mapping[str, EnginePlan] | None = None,
    latency: bool = False,
    inspection: Inspection | None = None,
    extent: Extent | None = None,
    progress: Progress | None = None,
) -> Report:
    """Proves what can be proved here; what this machine lacks is a Finding, never an exception.

    Args:
        bundle: What the engines are made from.
        engines: The kinds to look at; those that the requirements name are added.
        module: The PyTorch module, for the torch engines.
        require: What the verdict depends on.
        plans: What was built already, by kind; the others are built.
        latency: Whether to measure latency, too.
        inspection: What `model.onnx` holds; read from it by default.
        extent: How far to go beyond the shipped cases; not at all by default.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        UsageError: If a kind does not exist, or a plan was built from another bundle.
        BundleError: If a case cannot be read.
        InputError: If a case of the user's own does not fit.
        GraphError: If `model.onnx` cannot be read.
    """
    require = require or Requirements()
    kinds = tuple(dict.fromkeys((*engines, *require.kinds())))
    for kind in kinds:
        engine_kind(kind)
    plans = plans or {}
    _refuse_foreign(plans, bundle)
    extent = extent or Extent()
    if extent.needs_module and module is None:
        raise UsageError(
            "further cases and cases of your own are compared with the module, and there is none: "
            "give module=, or a bundle whose source can be made here"
        )
    steps = Steps(progress, len(kinds) * (1 + len(bundle.manifest.cases)) + latency)
    bench = Bench(
        bundle, shipped_cases(bundle), {}, Reproducers(extent.reproducers, bundle), steps.begin
    )
    run = _Run(
        bundle=bundle,
        module=module,
        require=require,
        plans=plans,
        inspection=inspection or _inspect(bundle),
        steps=steps,
        extent=extent,
        bench=bench,
    )
    with tempfile.TemporaryDirectory(prefix="attnport-cases-") as folder:
        if module is not None and extent.needs_module:
            run.bench, run.steps, faults = with_further_cases(
                run.bench, module, extent, Path(folder), len(kinds), progress
            )
            run.findings += faults
        _prove_all(run, kinds)
    if latency:
        run.measurements += _latencies(run)
    run.findings += check_latency(bundle, run.measurements, require)
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=this_machine(),
        findings=tuple(run.findings),
        measurements=tuple(run.measurements),
    )


def _prove_all(run: _Run, kinds: Sequence[str]) -> None:
    found = check_qkv_in_graph(run.bundle, run.inspection, required=run.require.qkv)
    run.findings += [run.bench.reproducers.keep(finding, None, None) for finding in found]
    for done, kind in enumerate(kinds):
        run.steps.reach(done * (1 + len(run.bench.cases)))
        _prove_engine(run, kind)
    run.findings += _no_engine_ran(run, kinds)


def _inspect(bundle: Bundle) -> Inspection:
    # Read again from the file: what bundle.json claims may be what a pass meant to do.
    from attnport.export.onnx_file import inspect_model

    return inspect_model(bundle.model_path)


def _refuse_foreign(plans: Mapping[str, EnginePlan], bundle: Bundle) -> None:
    for kind, plan in plans.items():
        if plan.bundle_hash != bundle.hash:
            raise UsageError(
                f"the plan given for {kind} was built from another bundle ({plan.model}, hash "
                f"{plan.bundle_hash[:12]}) than {bundle.name} ({bundle.hash[:12]}): build it again"
            )


def _prove_engine(run: _Run, kind: str) -> None:
    plan, obstacle = _build(run, kind)
    if plan is not None:
        run.measurements += build_cost(run.bundle, plan)
    told = _plan_findings(run, kind, plan, obstacle)
    run.findings += [run.bench.reproducers.keep(finding, plan, None) for finding in told]
    run.findings += _rebuilt(run, kind, plan)
    if obstacle is None:
        obstacle = _prove_parity(run, kind, plan)
    if obstacle is not None:
        run.findings.append(_parity_not_run(run, kind, obstacle))


def _build(run: _Run, kind: str) -> tuple[EnginePlan | None, Obstacle | None]:
    if kind in run.plans:
        return run.plans[kind], None
    if engine_kind(kind).needs_module and run.module is None:
        return None, Obstacle(
            "not run", f"{kind} runs the module, which was not given: pass module="
        )
    progress = run.steps.begin(f"building {kind}")
    try:
        return build_engine(run.bundle, kind, progress=progress), None
    except InternalError:
        raise
    except (AttnportError, MemoryError) as err:
        return None, _obstacle(err)


def _plan_findings(
    run: _Run, kind: str, plan: EnginePlan | None, obstacle: Obstacle | None
) -> Iterator[Finding]:
    """What is read from the plan: fusion, causality, one GEMM, the number of kernels."""
    subject = Subject.of(run.bundle, kind)
    fusion = None if plan is None else plan.fusion
    absent = obstacle or Obstacle("not run", "the plan tells nothing of its kernels")
    attentions, dtype = run.inspection.attentions, run.bundle.dtype
    needed = run.require.fusion_of(kind, dtype)
    yield from check_fusion(subject, attentions, fusion, required=needed, absent=absent)
    needed = run.require.causal_of(kind, dtype)
    yield from check_causal(subject, attentions, fusion, required=needed, absent=absent)
    if fusion is not None:
        yield from check_qkv_in_plan(subject, run.inspection, fusion, required=run.require.qkv)
    if kind in run.require.kernels:
        yield check_kernels(subject, fusion, run.require.kernels[kind], absent=absent)


def _prove_parity(run: _Run, kind: str, plan: EnginePlan | None) -> Obstacle | None:
    lack = availability(kind)
    if lack:
        return Obstacle("not run", lack)
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(
                open_engine(run.bundle, kind, module=run.module, plan=plan)
            )
        except InternalError:
            raise
        except (AttnportError, MemoryError) as err:
            return _obstacle(err)
        run.opened.append(kind)
        run.findings += judge_engine(
            engine,
            plan,
            run.bench,
            required=run.require.parity_of(kind, runnable=True),
            reopen=(lambda: open_engine(run.bundle, kind, module=run.module, plan=plan))
            if run.extent.further
            else None,
        )
    return None


def _rebuilt(run: _Run, kind: str, plan: EnginePlan | None) -> Iterator[Finding]:
    """Builds a plan once more, to say whether it comes out the same."""
    if not run.extent.further or plan is None or plan.plan_sha256 is None:
        return
    with tempfile.TemporaryDirectory(prefix="attnport-rebuild-") as folder:
        try:
            again = build_engine(run.bundle, kind, out=Path(folder))
        except InternalError:
            raise
        except (AttnportError, MemoryError) as err:
            yield Subject.of(run.bundle, kind).finding(
                "repeat", "rebuild", *_obstacle(err), required=False
            )
            return
        yield same_plan(run.bundle, kind, plan.plan_sha256, again.plan_sha256)


def _parity_not_run(run: _Run, kind: str, obstacle: Obstacle) -> Finding:
    # An engine that is at fault was able to run here: under "all runnable" it counts.
    required = run.require.parity_of(kind, runnable=obstacle.status == "failed")
    subject = Subject.of(run.bundle, kind)
    return subject.finding("parity", COVERAGE, *obstacle, required=required)


def _no_engine_ran(run: _Run, kinds: Sequence[str]) -> Iterator[Finding]:
    """Where every runnable engine is required, that there was none is not a proof."""
    missing = not any(f.check == "parity" and f.required for f in run.findings)
    if run.require.parity == ALL_RUNNABLE and missing:
        asked = ", ".join(kinds) or "none"
        message = f"no engine asked for can run on this machine ({asked}): ask for ort-cpu"
        yield Subject.of(run.bundle, GRAPH).finding(
            "parity", COVERAGE, "not run", message, required=True
        )


def _obstacle(error: Exception) -> Obstacle:
    if isinstance(error, MemoryError):
        return Obstacle("not run", "this machine has not enough memory for it")
    lacking = isinstance(error, EngineUnavailableError | UnsupportedDtypeError)
    return Obstacle("not run" if lacking else "failed", str(error))


def _latencies(run: _Run) -> Iterator[Measurement]:
    from attnport.validate.latency import measure_latency

    run.steps.begin("measuring latency")
    result = measure_latency(run.bundle, run.opened, module=run.module, peers=True)
    yield from result.measurements
    for kind, reason in result.left_out.items():
        yield not_measured(run.bundle, kind, reason)
