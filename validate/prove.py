"""From a bundle to a Report: build and open each engine, run every case, judge, measure."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.engines.build_options import BuildOptions
from attnport.engines.kinds import availability, engine_kind
from attnport.engines.libraries import install_command, why_missing
from attnport.engines.plan import EnginePlan
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import Inspection
from attnport.validate.cost import not_measured
from attnport.validate.coverage import COVERAGE
from attnport.validate.extent import Extent
from attnport.validate.finding import GRAPH, Finding, Subject
from attnport.validate.fusion import check_found
from attnport.validate.latency_gate import check_latency
from attnport.validate.machine import this_machine
from attnport.validate.progress import Progress, Steps
from attnport.validate.prove_cases import with_further_cases
from attnport.validate.prove_engine import Bench
from attnport.validate.prove_kind import Proof, prove_kind
from attnport.validate.qkv import check_qkv_in_graph
from attnport.validate.report import Measurement, Report
from attnport.validate.reproducer import Reproducers
from attnport.validate.requirements import ALL_RUNNABLE, Requirements
from attnport.validate.stored_case import shipped_cases

if TYPE_CHECKING:
    import torch


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
    options: BuildOptions | None = None,
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
        options: Of plans that are built here, such as their profiles.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        UsageError: If a kind does not exist, or a plan was built from another bundle.
        BundleError: If a case cannot be read.
        InputError: If a case of the user's own does not fit.
        GraphError: If `model.onnx` cannot be read.
    """
    _require_arguments(engines, module)
    require = require or Requirements()
    kinds = tuple(dict.fromkeys((*engines, *require.kinds())))
    for kind in kinds:
        engine_kind(kind)
    plans = plans or {}
    _refuse_foreign(plans, bundle)
    extent = extent or Extent()
    if extent.needs_module and module is None:
        raise UsageError(_no_module(bundle))
    steps = Steps(progress, len(kinds) * (1 + len(bundle.manifest.cases)) + latency)
    bench = Bench(
        bundle, shipped_cases(bundle), {}, Reproducers(extent.reproducers, bundle), steps.begin
    )
    run = Proof(
        bundle=bundle,
        module=module,
        require=require,
        plans=plans,
        inspection=inspection or _inspect(bundle),
        steps=steps,
        extent=extent,
        bench=bench,
        options=options,
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


def _prove_all(run: Proof, kinds: Sequence[str]) -> None:
    found = check_qkv_in_graph(run.bundle, run.inspection, required=run.require.qkv)
    run.findings += [run.bench.reproducers.keep(finding, None, None) for finding in found]
    run.findings += check_found(run.bundle, run.inspection)
    for done, kind in enumerate(kinds):
        run.steps.reach(done * (1 + len(run.bench.cases)))
        prove_kind(run, kind)
    run.findings += _no_engine_ran(run, kinds)


def _require_arguments(engines: object, module: object) -> None:
    if isinstance(engines, str):
        raise UsageError(f"engines is a string: give a list of kinds, [{engines!r}]")
    # Known by what is called of it: torch is not imported for this.
    if module is not None and not hasattr(module, "named_modules"):
        raise UsageError(
            f"module is {module!r}: give a torch.nn.Module, the one that was exported"
        )


def _no_module(bundle: Bundle) -> str:
    said = "further cases, and cases of your own, are computed by the module"
    lack = why_missing("torch")
    if lack:
        return (
            f"{said}, and {lack}: `{install_command('torch')}`, or prove the shipped cases alone"
        )
    if bundle.manifest.source:
        return f"{said}, which was not given: pass module="
    return (
        f"{said}, and {bundle.path} does not say what it was made from: pass module= in Python, "
        "or export it by name (`attnport export path.py:factory`)"
    )


def _inspect(bundle: Bundle) -> Inspection:
    # Read again from the file: what bundle.json claims may be what a pass meant to do.
    from attnport.export.onnx_file import inspect_model

    return inspect_model(bundle.model_path, bundle.axes)


def _refuse_foreign(plans: Mapping[str, EnginePlan], bundle: Bundle) -> None:
    for kind, plan in plans.items():
        if plan.bundle_hash != bundle.hash:
            raise UsageError(
                f"the plan given for {kind} was built from another bundle ({plan.model}, hash "
                f"{plan.bundle_hash[:12]}) than {bundle.name} ({bundle.hash[:12]}): build it again"
            )


def _no_engine_ran(run: Proof, kinds: Sequence[str]) -> Iterator[Finding]:
    """Where every runnable engine is required, that there was none is not a proof."""
    missing = not any(f.check == "parity" and f.required for f in run.findings)
    if run.require.parity == ALL_RUNNABLE and missing:
        why = "; ".join(
            f"{kind}: {availability(kind) or 'the module is missing'}" for kind in kinds
        )
        asked = f"none of the engines asked for runs on this machine ({why})"
        message = f"{asked if kinds else 'no engine was asked for'}: ask for ort-cpu, too"
        yield Subject.of(run.bundle, GRAPH).finding(
            "parity", COVERAGE, "not run", message, required=True
        )


def _latencies(run: Proof) -> Iterator[Measurement]:
    from attnport.validate.latency import measure_latency

    run.steps.begin("measuring latency")
    result = measure_latency(run.bundle, run.opened, module=run.module, peers=True)
    yield from result.measurements
    for kind, reason in result.left_out.items():
        yield not_measured(run.bundle, kind, reason)
