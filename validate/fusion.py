"""Fusion: what became of each attention in the plan, read from what the plan tells of itself.

One Finding for each attention (and profile, where there are several) under "fusion", one for each
causal attention under "causal", and one under "kernels" where a maximum was required.

An attention that is not fused has status
    failed    where fusion is required, or where the engine has a fused kernel for the dtype
    not run   where it is not required and the engine has no fused kernel for the dtype: there was
              nothing that could have been used, so nothing went wrong
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnport.engines.kinds import engine_kind
from attnport.engines.plan import AttentionFusion, FusionReport, PlanLowering
from attnport.export.bundle import Bundle
from attnport.export.records import AttentionInfo, Inspection
from attnport.validate.finding import Finding, Number, Obstacle, Status, Subject

# Kinds whose plan tells of attention kernels, and the dtypes that they have such kernels for.
# TensorRT for RTX 1.7 and TensorRT 11 fuse float32 only where there is a single query.
FUSED_DTYPES: dict[str, frozenset[str]] = {
    "tensorrt": frozenset({"float16", "bfloat16"}),
    "tensorrt-rtx": frozenset({"float16", "bfloat16"}),
}

EVERY = "every attention"  # the case of what is said of all of them

NOT_BUILT = Obstacle("not run", "the engine was not built")
UNTOLD = Obstacle("not run", "the plan's table does not tell of it")


def can_fuse(kind: str, dtype: str) -> bool:
    """Whether the kind has a fused attention kernel for the dtype."""
    return dtype in FUSED_DTYPES.get(kind, ())


def check_found(bundle: Bundle, inspection: Inspection) -> Iterator[Finding]:
    """States of the graph alone that it holds no attention, or one that no pass wrote anew.

    Neither is required: the numbers of such a graph can be proved. It must not go unsaid.

    Args:
        bundle: The bundle.
        inspection: What its `model.onnx` holds.
    """
    subject = Subject.of(bundle)
    if not inspection.attentions:
        said = "no attention was found in the graph: what is proved is its numbers alone; see "
        said += "`attnport inspect` on its model.onnx"
        yield subject.finding("fusion", EVERY, "not run", said, required=False)
    for attention in inspection.attentions:
        if not attention.rewritable:
            why = attention.reason or "no pass knows its form"
            said = f"left as it was written: {why}"
            yield subject.finding("fusion", attention.name, "not run", said, required=False)


def check_fusion(
    subject: Subject,
    attentions: Sequence[AttentionInfo],
    fusion: FusionReport | None,
    *,
    required: bool,
    absent: Obstacle = NOT_BUILT,
) -> Iterator[Finding]:
    """Says of each attention of the graph whether the plan runs it as one kernel.

    Args:
        subject: The engine.
        attentions: Those of the graph, as inspected.
        fusion: What the plan tells; None where there is none.
        required: Whether fusion is required of this engine.
        absent: What to say where there is no plan.
    """
    if subject.engine not in FUSED_DTYPES:
        yield from _untold(subject, attentions, absent)
        return
    if not attentions:
        reason = "no attention was recognised in the graph: see `attnport inspect`"
        yield subject.finding("fusion", EVERY, "not run", reason, required=required)
    for attention in attentions:
        rows = _rows(fusion, attention.name)
        if not rows:
            said = absent if fusion is None else UNTOLD
            yield subject.finding("fusion", attention.name, *said, required=required)
        for row in rows:
            status, message = _fusion_status(subject, row, required)
            yield subject.finding(
                "fusion",
                _case(row, rows),
                status,
                message,
                required=required,
                numbers=_numbers(row),
            )


def _untold(
    subject: Subject, attentions: Sequence[AttentionInfo], absent: Obstacle
) -> Iterator[Finding]:
    """Of engines without a plan that tells of kernels: never required, and never passed."""
    kind = subject.engine
    if not engine_kind(kind).has_attention_kernels:
        reason = f"not applicable: {kind} has no attention kernel whose use its plan tells"
        yield subject.finding("fusion", EVERY, "not run", reason, required=False)
        return
    for attention in attentions:
        yield subject.finding("fusion", attention.name, "not run", absent.message, required=False)


def check_lowered(subject: Subject, lowering: PlanLowering | None) -> Iterator[Finding]:
    """Says of each attention that the engine is given in another form than the graph's: which.

    Such as the chunks in which ONNX Runtime on the CPU computes long causal sequences. What is
    told is the form alone, so it is never required, and never passed.
    """
    for name, reason in (lowering.attentions if lowering is not None else {}).items():
        said = f"given to {subject.engine} in a form of its own: {reason}"
        yield subject.finding("fusion", name, "not run", said, required=False)


def check_causal(
    subject: Subject,
    attentions: Sequence[AttentionInfo],
    fusion: FusionReport | None,
    *,
    required: bool,
    absent: Obstacle = NOT_BUILT,
) -> Iterator[Finding]:
    """Says of each causal attention whether its kernel skips the keys after the query.

    Only pure causality is ever required: with another mask, or with a past, no form is known that
    a kernel bounds.

    Args:
        subject: The engine.
        attentions: Those of the graph, as inspected.
        fusion: What the plan tells; None where there is none.
        required: Whether a bounded kernel is required of this engine.
        absent: What to say where there is no plan.
    """
    if subject.engine not in FUSED_DTYPES:
        return
    for attention in (attention for attention in attentions if attention.causal):
        needed = required and attention.mask == "none"
        rows = _rows(fusion, attention.name)
        if not rows:
            said = absent if fusion is None else UNTOLD
            yield subject.finding("causal", attention.name, *said, required=needed)
        for row in rows:
            status, message = _causal_status(row, attention)
            yield subject.finding(
                "causal",
                _case(row, rows),
                status,
                message,
                required=needed,
                numbers=_numbers(row),
            )


def check_kernels(
    subject: Subject,
    fusion: FusionReport | None,
    maximum: int,
    *,
    absent: Obstacle = NOT_BUILT,
) -> Finding:
    """Compares the number of kernels with the required maximum.

    Args:
        subject: The engine.
        fusion: What the plan tells; None where there is none.
        maximum: The most kernels that the plan may run.
        absent: What to say where there is no plan.
    """
    if fusion is None:
        return subject.finding("kernels", "plan", *absent, required=True)
    count = fusion.kernel_count
    passed = count <= maximum
    return subject.finding(
        "kernels",
        "plan",
        "passed" if passed else "failed",
        f"{count} kernels, at most {maximum} required"
        + ("" if passed else ": see the plan's layers for the ones that joined no other"),
        required=True,
        numbers={"kernels": count, "maximum": maximum},
    )


def _fusion_status(subject: Subject, row: AttentionFusion, required: bool) -> tuple[Status, str]:
    if row.fused:
        return "passed", f"fused into {row.kernel}"
    if can_fuse(subject.engine, subject.dtype):
        return "failed", f"not fused: {row.reason or 'the plan runs it as several kernels'}"
    dtypes = " or ".join(sorted(FUSED_DTYPES[subject.engine]))
    why = row.reason or f"no fused attention kernel for {subject.dtype}: export in {dtypes}"
    return "failed" if required else "not run", f"not fused: {why}"


def _causal_status(row: AttentionFusion, attention: AttentionInfo) -> tuple[Status, str]:
    if row.fused and row.causal == "bounded":
        return "passed", "bounded: the kernel skips the keys after the query"
    if not row.fused:
        return "not run", "not fused, so there is no kernel that could skip the keys after a query"
    if attention.mask != "none":
        return (
            "not run",
            f"not applicable: a {attention.mask} mask beside causality is not bounded",
        )
    remedy = (
        "the kernel computes the keys after the query and hides them; write causality as "
        "Add(scores, Where(Trilu, 0, -inf)) with no other mask, as `attnport export` does"
    )
    return "failed", f"masked: {row.note or remedy}"


def _rows(fusion: FusionReport | None, attention: str) -> list[AttentionFusion]:
    return [row for row in fusion.attentions if row.attention == attention] if fusion else []


def _case(row: AttentionFusion, rows: Sequence[AttentionFusion]) -> str:
    return row.attention if len(rows) == 1 else f"{row.attention}/profile{row.profile}"


def _numbers(row: AttentionFusion) -> dict[str, Number]:
    return {
        "kernel": row.kernel,
        "causal": row.causal,
        "profile": row.profile,
        "nodes": ", ".join(row.nodes),
    }
