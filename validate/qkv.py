"""QKV: whether the projections of each attention are one matrix in the file and one GEMM in the plan.

TensorRT merges GEMMs that share an input by itself, so its plan alone says nothing about ours: the
graph decides, read again from `model.onnx`, not from what `bundle.json` claims of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnport.engines.plan import FusionReport, ProjectionFusion
from attnport.export.bundle import Bundle
from attnport.export.records import Inspection, ProjectionGroup
from attnport.validate.finding import Finding, Number, Status, Subject
from attnport.validate.fusion import UNTOLD


def check_qkv_in_graph(
    bundle: Bundle, inspection: Inspection, *, required: bool
) -> Iterator[Finding]:
    """Says of each projection group whether one matrix holds it in the file.

    Args:
        bundle: The bundle, for what it claims.
        inspection: What its `model.onnx` holds.
        required: Whether merging is required.
    """
    subject = Subject.of(bundle)
    found = {group.name for group in inspection.projection_groups}
    for group in inspection.projection_groups:
        status, message = _graph_status(group)
        yield subject.finding(
            "qkv", group.name, status, message, required=required, numbers=_numbers(group)
        )
    for claimed in bundle.manifest.projection_groups:
        if claimed.name not in found:
            message = "bundle.json tells of it, but model.onnx does not hold it: export again"
            yield subject.finding("qkv", claimed.name, "failed", message, required=required)
    if not found and not bundle.manifest.projection_groups:
        reason = "not applicable: no attention of the graph has projections that share an input"
        yield subject.finding("qkv", "every group", "not run", reason, required=False)


def check_qkv_in_plan(
    subject: Subject, inspection: Inspection, fusion: FusionReport, *, required: bool
) -> Iterator[Finding]:
    """Says of each projection group whether it is merged in the file and one GEMM in the plan.

    Args:
        subject: The engine.
        inspection: What the bundle's `model.onnx` holds.
        fusion: What the plan tells.
        required: Whether merging is required.
    """
    for group in inspection.projection_groups:
        rows: list[ProjectionFusion | None] = [
            row for row in fusion.projection_groups if row.group == group.name
        ]
        for row in rows or [None]:
            status, message = _plan_status(group, row)
            numbers = _numbers(group)
            case = group.name
            if row is not None:
                numbers |= {"one_gemm": row.one_gemm, "layer": row.layer}
                case += f"/profile{row.profile}" if len(rows) > 1 else ""
            yield subject.finding("qkv", case, status, message, required=required, numbers=numbers)


def _graph_status(group: ProjectionGroup) -> tuple[Status, str]:
    if group.merged:
        return "passed", f"merged: one matrix holds {group.kind.upper()}"
    return "failed", f"not merged: {_why_not(group)}"


def _plan_status(group: ProjectionGroup, row: ProjectionFusion | None) -> tuple[Status, str]:
    if not group.merged:
        message = f"not merged in model.onnx: {_why_not(group)}"
        if row is not None and row.one_gemm:
            message += " (the one GEMM in the plan is the builder's own doing)"
        return "failed", message
    if row is None:
        return UNTOLD
    if not row.one_gemm:
        return "failed", f"merged in model.onnx, but no single GEMM in the plan: {row.reason}"
    return "passed", f"merged in model.onnx and one GEMM in the plan ({row.layer})"


def _why_not(group: ProjectionGroup) -> str:
    return group.reason or f"{len(group.nodes)} separate products ({', '.join(group.nodes)})"


def _numbers(group: ProjectionGroup) -> dict[str, Number]:
    return {"merged": group.merged, "kind": group.kind, "sizes": list(group.sizes)}
