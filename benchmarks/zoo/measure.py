"""Looks at one architecture, in a process that does nothing else.

A process of its own, since exporters and sessions were seen to take theirs down. After each step
it writes what it knows, so that a death is told with the step that it happened in.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.catalogue import ARCHITECTURES
from benchmarks.zoo.outcome import DtypeOutcome, Outcome, StockOutcome
from benchmarks.zoo.regions import region_kernels
from benchmarks.zoo.stock import OPSETS, StockError, build_layers, export_stock

from attnport.engines.build import build_engine
from attnport.engines.plan import EnginePlan
from attnport.engines.profiles import profile_from_axes
from attnport.errors import AttnportError
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.validate.finding import Finding
from attnport.validate.prove import prove
from attnport.validate.requirements import Requirements

DTYPES = ("float32", "float16")
_BUILDER = "tensorrt-rtx"


@dataclass(frozen=True)
class Options:
    """What a run looks at.

    Attributes:
        dtypes: Those to export in.
        stock: Whether to build torch.onnx's own exports, too.
    """

    dtypes: tuple[str, ...] = DTYPES
    stock: bool = True


class Sheet:
    """The outcome so far, on disk after every change."""

    def __init__(self, name: str, path: Path) -> None:
        self.path = path
        self.outcome = Outcome(name=name)
        self.start = time.perf_counter()

    def step(self, doing: str) -> None:
        self.write(died=doing)

    def write(self, **changes: object) -> None:
        seconds = round(time.perf_counter() - self.start, 2)
        update = {"seconds": seconds, "peak_bytes": _peak_bytes(), **changes}
        self.outcome = self.outcome.model_copy(update=update)
        self.path.write_text(self.outcome.model_dump_json(), "utf-8")


def measure_to(name: str, path: Path, options: Options) -> None:
    """Measures one architecture, and writes its Outcome to a file.

    Args:
        name: The architecture.
        path: The file; it is written after every step.
        options: What to leave out.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    entry = ARCHITECTURES[name]
    with tempfile.TemporaryDirectory() as folder:
        measure(entry, Sheet(name, path), Path(folder), options)


def measure(entry: Architecture, sheet: Sheet, home: Path, options: Options) -> None:
    """Exports, builds and proves in every dtype; then stock exports."""
    module = entry.make()
    bundles: dict[str, Bundle] = {}
    for dtype in (entry.half if dtype == "float16" else dtype for dtype in options.dtypes):
        sheet.step(f"exporting in {dtype}")
        outcome, bundle = _export(entry, module, dtype, home / dtype)
        if bundle is not None:
            bundles[dtype] = bundle
            sheet.step(f"building in {dtype}")
            outcome = _build(outcome, bundle)
            sheet.step(f"running in {dtype}")
            outcome = _parity(outcome, bundle)
        sheet.write(dtypes=sheet.outcome.dtypes | {dtype: outcome})
    like = bundles.get(entry.half, next(iter(bundles.values()), None))
    for opset in OPSETS if options.stock and like is not None else ():
        assert like is not None
        sheet.step(f"stock export at opset {opset}")
        found = _stock(entry, module, like, opset, home / f"stock{opset}")
        sheet.write(stock=sheet.outcome.stock | {str(opset): found})
    sheet.write(died="")


def _export(
    entry: Architecture, module: torch.nn.Module, dtype: str, out: Path
) -> tuple[DtypeOutcome, Bundle | None]:
    start = time.perf_counter()
    try:
        bundle = export_module(
            module,
            entry.example(),
            out,
            dynamic_shapes=entry.dynamic_shapes,
            axes=entry.axes,
            dtype=dtype,
            inputs=entry.roles,
            name=entry.name,
        )
    except AttnportError as err:
        return DtypeOutcome(refusal=f"export: {err}"), None
    except Exception as err:  # an error of ours: shown, with the rest of the zoo
        said = f"export: {type(err).__name__}: {err}"
        return DtypeOutcome(refusal=said, refused_in_words=False), None
    attentions, groups = bundle.manifest.attentions, bundle.manifest.projection_groups
    return DtypeOutcome(
        export_seconds=round(time.perf_counter() - start, 2),
        found=sum(attention.recognised for attention in attentions),
        unrecognised=tuple(dict.fromkeys(a.reason for a in attentions if not a.recognised)),
        groups=len(groups),
        merged=sum(group.merged for group in groups),
        unmerged=tuple(dict.fromkeys(g.reason for g in groups if not g.merged)),
    ), bundle


def _build(outcome: DtypeOutcome, bundle: Bundle) -> DtypeOutcome:
    try:
        plan: EnginePlan = build_engine(bundle, _BUILDER)
    except Exception as err:  # whatever it is, the other steps go on and the sentence is shown
        return outcome.model_copy(update={"refusal": f"build: {err}"})
    fusion = plan.fusion
    assert fusion is not None
    return outcome.model_copy(
        update={
            "built": True,
            "fused": sum(a.fused for a in fusion.attentions),
            "unfused": tuple(dict.fromkeys(a.reason for a in fusion.attentions if not a.fused)),
            "bounded": sum(a.causal == "bounded" for a in fusion.attentions),
            "one_gemm": sum(group.one_gemm for group in fusion.projection_groups),
            "kernels": fusion.kernel_count,
            "region_kernels": region_kernels(_built_graph(plan, bundle), fusion.layers),
            "form": plan.lowering.form if plan.lowering is not None else "",
            "build_seconds": round(plan.build_seconds, 2),
        }
    )


def _built_graph(plan: EnginePlan, bundle: Bundle) -> Path:
    """The graph that TensorRT was given: model.onnx, or the lowered one beside the plan."""
    lowered = plan.lowering.graph if plan.lowering is not None else ""
    return plan.path.with_name(lowered) if lowered and plan.path else bundle.model_path


def _parity(outcome: DtypeOutcome, bundle: Bundle) -> DtypeOutcome:
    try:
        report = prove(bundle, ["ort-cpu"], require=Requirements(fusion=(), qkv=False))
    except Exception as err:
        return outcome.model_copy(update={"parity_note": f"{type(err).__name__}: {err}"})
    findings = [f for f in report.findings if f.check == "parity" and f.engine == "ort-cpu"]
    status, note = _verdict(findings)
    passed = sum(f.status == "passed" for f in findings) - (status == "passed")
    return outcome.model_copy(
        update={"parity": status, "parity_cases": passed, "parity_note": note}
    )


def _verdict(findings: list[Finding]) -> tuple[str, str]:
    """Failed outranks not run: a required Finding that is neither is no proof."""
    for status in ("failed", "not run"):
        for finding in findings:
            if finding.status == status and finding.required:
                return status, f"{finding.case}: {finding.message}"
    return ("passed", "") if findings else ("not run", "no case")


def _stock(
    entry: Architecture, module: torch.nn.Module, like: Bundle, opset: int, folder: Path
) -> StockOutcome:
    folder.mkdir()
    path = folder / "model.onnx"
    profile = profile_from_axes(like.manifest.inputs, like.axes)
    try:
        export_stock(entry, module, entry.half, opset, path)
        layers = build_layers(path, profile, folder)
    except StockError as err:
        return StockOutcome(refusal=str(err))
    return StockOutcome(
        kernels=sum(layer.is_kernel for layer in layers),
        region_kernels=region_kernels(path, layers),
    )


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
