"""One kind of engine: build it, read its plan, open it, judge it; an obstacle is a Finding."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.kinds import availability, engine_kind
from attnport.engines.open import open_engine
from attnport.engines.plan import EnginePlan
from attnport.errors import (
    AttnportError,
    EngineUnavailableError,
    InternalError,
    UnsupportedDtypeError,
)
from attnport.export.bundle import Bundle
from attnport.export.records import Inspection
from attnport.validate.cost import build_cost
from attnport.validate.coverage import COVERAGE
from attnport.validate.device_peer import peer_of
from attnport.validate.extent import Extent
from attnport.validate.finding import Finding, Obstacle, Subject
from attnport.validate.fusion import check_causal, check_fusion, check_kernels, check_lowered
from attnport.validate.progress import Steps
from attnport.validate.prove_decoding import prove_decoding
from attnport.validate.prove_engine import Bench, judge_engine
from attnport.validate.qkv import check_qkv_in_plan
from attnport.validate.ran import check_ran
from attnport.validate.repeat import same_plan
from attnport.validate.report import Measurement
from attnport.validate.requirements import Requirements

if TYPE_CHECKING:
    import torch


@dataclass
class Proof:
    """One call of `prove`, and what it has found so far."""

    bundle: Bundle
    module: torch.nn.Module | None
    require: Requirements
    plans: Mapping[str, EnginePlan]
    inspection: Inspection
    steps: Steps
    extent: Extent
    bench: Bench
    options: BuildOptions | None = None
    findings: list[Finding] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)


def prove_kind(run: Proof, kind: str) -> None:
    """Adds to the proof every Finding and Measurement of one kind."""
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
    elif run.bundle.manifest.caches:
        run.steps.begin(f"{kind}: decoding")
        needed = run.require.parity_of(kind, runnable=True)
        found = prove_decoding(run.bundle, kind, plan, run.module, required=needed)
        run.findings += [run.bench.reproducers.keep(finding, plan, None) for finding in found]


def _build(run: Proof, kind: str) -> tuple[EnginePlan | None, Obstacle | None]:
    if kind in run.plans:
        return run.plans[kind], None
    if engine_kind(kind).needs_module and run.module is None:
        why = (
            f"{kind} runs the module, which was not given, nor does the bundle say how to make it"
        )
        return None, Obstacle("not run", availability(kind) or f"{why}: pass module= in Python")
    progress = run.steps.begin(f"building {kind}")
    try:
        options = run.options if engine_kind(kind).builds_plan else None
        return build_engine(run.bundle, kind, options=options, progress=progress), None
    except InternalError:
        raise
    except (AttnportError, MemoryError) as err:
        return None, _obstacle(err)


def _plan_findings(
    run: Proof, kind: str, plan: EnginePlan | None, obstacle: Obstacle | None
) -> Iterator[Finding]:
    """What is read from the plan: fusion, causality, one GEMM, the number of kernels."""
    subject = Subject.of(run.bundle, kind)
    fusion = None if plan is None else plan.fusion
    absent = obstacle or Obstacle("not run", "what was built does not tell which kernels run it")
    attentions, dtype = run.inspection.attentions, run.bundle.dtype
    needed = run.require.fusion_of(kind, dtype)
    if obstacle is None and _profiled(run, kind):
        feeds = run.bench.cases[0].load().inputs
        yield from check_ran(run.bundle, kind, [one.name for one in attentions], feeds)
    else:
        yield from check_fusion(subject, attentions, fusion, required=needed, absent=absent)
        yield from check_lowered(subject, None if plan is None else plan.lowering)
    needed = run.require.causal_of(kind, dtype)
    yield from check_causal(subject, attentions, fusion, required=needed, absent=absent)
    if fusion is not None:
        yield from check_qkv_in_plan(subject, run.inspection, fusion, required=run.require.qkv)
    if kind in run.require.kernels:
        yield check_kernels(subject, fusion, run.require.kernels[kind], absent=absent)


def _profiled(run: Proof, kind: str) -> bool:
    """Whether a run of ONNX Runtime on a device here can tell what it did with the attentions."""
    asked = engine_kind(kind)
    on_device = bool(asked.provider) and asked.has_attention_kernels
    return on_device and bool(run.bench.cases) and not availability(kind)


def _prove_parity(run: Proof, kind: str, plan: EnginePlan | None) -> Obstacle | None:
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
            peer=peer_of(run.bundle, run.module) if engine_kind(kind).device == "cuda" else None,
            reopen=(lambda: open_engine(run.bundle, kind, module=run.module, plan=plan))
            if run.extent.further
            else None,
        )
    return None


def _rebuilt(run: Proof, kind: str, plan: EnginePlan | None) -> Iterator[Finding]:
    """Builds a plan once more, to say whether it comes out the same."""
    if not run.extent.further or plan is None or plan.plan_sha256 is None:
        return
    with tempfile.TemporaryDirectory(prefix="attnport-rebuild-") as folder:
        try:
            again = build_engine(run.bundle, kind, out=Path(folder), options=plan.options)
        except InternalError:
            raise
        except (AttnportError, MemoryError) as err:
            yield Subject.of(run.bundle, kind).finding(
                "repeat", "rebuild", *_obstacle(err), required=False
            )
            return
        yield same_plan(run.bundle, kind, plan.plan_sha256, again.plan_sha256)


def _parity_not_run(run: Proof, kind: str, obstacle: Obstacle) -> Finding:
    # An engine that is at fault was able to run here: under "all runnable" it counts.
    required = run.require.parity_of(kind, runnable=obstacle.status == "failed")
    subject = Subject.of(run.bundle, kind)
    return subject.finding("parity", COVERAGE, *obstacle, required=required)


def _obstacle(error: Exception) -> Obstacle:
    if isinstance(error, MemoryError):
        return Obstacle("not run", "this machine has not enough memory for it")
    lacking = isinstance(error, EngineUnavailableError | UnsupportedDtypeError)
    return Obstacle("not run" if lacking else "failed", str(error))
