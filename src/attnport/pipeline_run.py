"""Runs a pipeline: export, build and prove each model, then measure latency, then report.

A model that cannot be exported does not keep the others from being proved: it becomes a required
Finding that failed, so the verdict is "failed" and the report says why. What is wrong with the file
itself is found before anything is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.engines.kinds import availability, engine_kind
from attnport.errors import AttnportError, InternalError, UsageError
from attnport.export.bundle import Bundle
from attnport.pipeline import Pipeline, Run
from attnport.validate.cost import not_measured
from attnport.validate.finding import GRAPH, Finding, Subject
from attnport.validate.html import write_html
from attnport.validate.latency import measure_latency
from attnport.validate.latency_gate import check_latency
from attnport.validate.machine import this_machine
from attnport.validate.prove import prove
from attnport.validate.report import Measurement, Report

if TYPE_CHECKING:
    from attnport.export.records import Form
    from attnport.models.spec import ModelSpec

Progress = Callable[[str, float], None]

_EXPORT_SHARE = 0.4  # of the time that one model takes, for the progress bar
_MODULE_MAKER = "attnport.models.sources:module_from_source"


@dataclass(frozen=True)
class PipelineResult:
    """What a pipeline gave.

    Attributes:
        report: All findings and measurements.
        json_path: The report on disk.
        html_path: The same to look at.
    """

    report: Report
    json_path: Path
    html_path: Path


def run_pipeline(
    pipeline: Pipeline, runs: Sequence[Run], progress: Progress | None = None
) -> PipelineResult:
    """Does all of it and writes `report.json` and `report.html` into the pipeline's folder.

    Args:
        pipeline: The file.
        runs: What `runs_of` made of it.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        UsageError: If the pipeline's folder cannot be made.
    """
    tell = progress or (lambda what, fraction: None)
    _make_folder(pipeline.out)
    timed = [run for run in runs if pipeline.latency and run.section.latency]
    steps = len(runs) + len(timed)
    proved: dict[Path, Bundle] = {}
    reports: list[Report] = []
    for i, run in enumerate(runs):
        bundle, report = _export_and_prove(run, _part(tell, i / steps, (i + 1) / steps))
        reports.append(report)
        if bundle is not None:
            proved[run.folder] = bundle
    report = Report.merged(reports)
    for i, run in enumerate(timed, start=len(runs)):
        tell(f"{run.name} {run.dtype}: measuring latency", i / steps)
        if pipeline.latency and run.folder in proved:
            measured = _latencies(run, proved[run.folder], pipeline.latency.seconds)
            report = report.model_copy(update={"measurements": (*report.measurements, *measured)})
    gated = [
        finding
        for run in runs
        if run.folder in proved
        for finding in check_latency(proved[run.folder], report.measurements, run.require)
    ]
    report = report.model_copy(update={"findings": (*report.findings, *gated)})
    tell("writing the report", 1.0)
    result = PipelineResult(report, pipeline.out / "report.json", pipeline.out / "report.html")
    report.save(result.json_path)
    write_html(report, result.html_path)
    return result


def _make_folder(out: Path) -> None:
    """At once, and not when the first report is written after minutes of work."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise UsageError(
            f"the folder {out} cannot be made ({err.strerror}): give another as `out`, or --out"
        ) from err


def bundle_from_spec(
    spec: ModelSpec,
    out: Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
    form: Form = "pattern",
    opset: int | None = None,
    case_sizes: dict[str, int] | None = None,
    max_cases: int | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Exports a model that is known by its spec; see `attnport.export_module`."""
    from attnport.export.export_module import export_module

    return export_module(
        spec.make(),
        spec.make_args(spec.opt_sizes()),
        out,
        dynamic_shapes=spec.dynamic_shapes,
        axes=spec.axes,
        dtype=dtype,
        inputs=spec.roles,
        form=form,
        opset=opset,
        name=name or spec.name,
        source=spec.source,
        case_sizes=case_sizes or None,
        max_cases=max_cases,
        progress=progress,
    )


def _export_and_prove(run: Run, tell: Progress) -> tuple[Bundle | None, Report]:
    section = run.section
    try:
        bundle = bundle_from_spec(
            run.spec,
            run.folder,
            name=run.name,
            dtype=run.dtype,
            form=section.form,
            opset=section.opset,
            case_sizes=section.case_sizes,
            max_cases=section.max_cases,
            progress=_part(tell, 0.0, _EXPORT_SHARE, f"{run.name} {run.dtype}"),
        )
    except InternalError:
        raise
    except (AttnportError, MemoryError) as err:
        return None, _report_of(_not_exported(run, err))
    kinds = (*run.engines, *run.require.kinds())
    report = prove(
        bundle,
        run.engines,
        module=run.spec.make()
        if bundle.manifest.caches or any(engine_kind(k).needs_module for k in kinds)
        else None,
        options=run.options,
        # Latency is measured after all parity, and judged then.
        require=run.require.model_copy(update={"latency": {}}),
        progress=_part(tell, _EXPORT_SHARE, 1.0, f"{run.name} {run.dtype}"),
    )
    return bundle, report


def _not_exported(run: Run, error: Exception) -> Finding:
    why = str(error) or "this machine has not enough memory for it"
    subject = Subject(run.name, "", run.dtype, GRAPH)
    return subject.finding("engine", "export", "failed", f"not exported: {why}", required=True)


def _report_of(finding: Finding) -> Report:
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=this_machine(),
        findings=(finding,),
    )


def _latencies(run: Run, bundle: Bundle, seconds: float) -> list[Measurement]:
    """Those of the engines that this machine can run; the module is made where it is measured."""
    runnable = [kind for kind in run.engines if not availability(kind)]
    result = measure_latency(bundle, runnable, module_maker=_MODULE_MAKER, seconds=seconds)
    left_out = [not_measured(bundle, kind, why) for kind, why in result.left_out.items()]
    return [*result.measurements, *left_out]


def _part(tell: Progress, start: float, end: float, label: str = "") -> Progress:
    """Progress of a part, told as progress of the whole."""

    def inside(what: str, fraction: float) -> None:
        tell(f"{label}: {what}" if label else what, start + fraction * (end - start))

    return inside
