"""What a TensorRT plan says of every attention and every group of projections.

A claim of fusion needs two witnesses that agree: the builder's table, in which one attention
kernel covers the scores, the softmax and the context of the attention, and the plan, which must
name that very kernel. That ONNX nodes are called "attention" proves nothing.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence

from attnport.axes import Axis
from attnport.engines.fusion_causes import known_cause
from attnport.engines.graph_facts import PART, GraphFacts
from attnport.engines.kernel_text import attention_kernels, visits_row_only
from attnport.engines.plan import (
    AttentionFusion,
    Causal,
    FusionReport,
    PlanLayer,
    ProjectionFusion,
)
from attnport.export.records import AttentionInfo, ProjectionGroup

# Prefill and one-token kernels of TensorRT for RTX 1.7.1. Looser words ("fmha", "attention") also
# match the layers of attentions that were decomposed.
_ATTENTION_KERNEL = re.compile(r"_ge(mm|mv)_mha_v\d")
# The matrix products of a plan; one with an Add after it becomes a "runtime_fusion" named FcAdd.
_GEMM_TYPES = frozenset({"gemm", "runtime_fusion"})
_CORE_OPERATORS = frozenset({"Attention", "MultiHeadAttention", "MatMul", "Einsum", "Softmax"})


def fusion_report(
    attentions: Sequence[AttentionInfo],
    groups: Sequence[ProjectionGroup],
    dtype: str,
    layers: Sequence[PlanLayer],
    plan: bytes | mmap.mmap,
    facts: GraphFacts | None = None,
    axes: Sequence[Mapping[str, Axis]] = (),
) -> FusionReport:
    """Judges every attention and projection group of a graph by the plan built from it.

    Args:
        attentions: The graph's attentions.
        groups: Its groups of projections.
        dtype: The bundle's dtype, for the reasons.
        layers: The builder's table, of all profiles.
        plan: The plan's bytes, or the mapped file.
        facts: What the graph says of its nodes; without it some reasons stay general.
        axes: The ranges of the axes in each profile; likewise.
    """
    known = facts or GraphFacts()
    kernels = attention_kernels(plan)
    profiles = sorted({layer.profile for layer in layers} | set(range(len(axes)))) or [0]
    of = {profile: [row for row in layers if row.profile == profile] for profile in profiles}
    counts = tuple(sum(row.is_kernel for row in of[profile]) for profile in profiles)
    return FusionReport(
        attentions=tuple(
            _attention_fusion(
                attention, dtype, of[profile], kernels, known, profile, _at(axes, profile)
            )
            for attention in attentions
            for profile in profiles
        ),
        projection_groups=tuple(
            _projection_fusion(group, of[profile], known, profile)
            for group in groups
            for profile in profiles
        ),
        kernel_count=counts[0],
        kernel_counts=counts,
        layers=tuple(layers),
    )


def _at(axes: Sequence[Mapping[str, Axis]], profile: int) -> Mapping[str, Axis]:
    return axes[profile] if profile < len(axes) else {}


def _attention_fusion(
    attention: AttentionInfo,
    dtype: str,
    layers: Sequence[PlanLayer],
    kernels: Mapping[str, str | None],
    facts: GraphFacts,
    profile: int,
    axes: Mapping[str, Axis],
) -> AttentionFusion:
    core = _core_nodes(attention, facts)
    kernel = next((layer for layer in layers if _is_attention_kernel(layer, core)), None)
    if kernel is not None and _kernel_name(kernel) in kernels:
        causal, note = _causality(attention, kernels[_kernel_name(kernel)])
        return AttentionFusion(
            attention=attention.name,
            fused=True,
            kernel=_kernel_name(kernel),
            causal=causal,
            nodes=kernel.nodes,
            profile=profile,
            note=note,
        )
    if kernel is not None:
        reason = (
            f"the builder's table names the kernel {_kernel_name(kernel)}, and the plan does not "
            "hold it: the two disagree, so nothing is claimed"
        )
    else:
        known = known_cause(attention, dtype, core, facts, axes)
        reason = _why_not_fused(known, layers, core)
    return AttentionFusion(
        attention=attention.name,
        fused=False,
        kernel=None,
        causal="masked" if attention.causal else "none",
        profile=profile,
        reason=reason,
    )


def _core_nodes(attention: AttentionInfo, facts: GraphFacts) -> frozenset[str]:
    """The nodes that one kernel must cover to be the attention: both products and the softmax.

    Scale and mask need not be listed: TensorRT folds them into the kernel or into a neighbour
    without a trace in the table. Without the operators the first and last node stand for all. A
    node without a name stays in, since no table can name it and nothing may be claimed.
    """
    core = frozenset(
        node for node in attention.nodes if not node or facts.op_types.get(node) in _CORE_OPERATORS
    )
    return core or frozenset((attention.nodes[0], attention.nodes[-1]))


def _is_attention_kernel(layer: PlanLayer, core: frozenset[str]) -> bool:
    return _ATTENTION_KERNEL.match(layer.name) is not None and core.issubset(layer.nodes)


def _kernel_name(layer: PlanLayer) -> str:
    return layer.tactic or layer.name


def _causality(attention: AttentionInfo, bound: str | None) -> tuple[Causal, str]:
    if not attention.causal:
        return "none", ""
    if bound is None:
        return "masked", (
            "the plan holds no text of this kernel that tells which keys it visits, so it is not "
            "claimed to skip any"
        )
    return ("bounded" if visits_row_only(bound) else "masked"), ""


def _why_not_fused(cause: str, layers: Sequence[PlanLayer], core: frozenset[str]) -> str:
    parts = [layer for layer in layers if layer.is_kernel and core.intersection(layer.nodes)]
    split = ", ".join(f"{layer.name} ({layer.type})" for layer in parts)
    if cause:
        return f"{cause}; it runs as {len(parts)} kernels"
    if not parts:
        return "none of its nodes is named in the builder's table"
    return f"TensorRT split it into: {split}"


def _products(group: ProjectionGroup, facts: GraphFacts) -> set[str]:
    """The group's products in the graph that was built, where one may stand as several."""
    parts = {node for node in facts.op_types for name in group.nodes if _is_part(node, name)}
    return {*group.nodes, *parts}


def _is_part(node: str, name: str) -> bool:
    return bool(name) and node.startswith(f"{name}{PART}")


def _projection_fusion(
    group: ProjectionGroup, layers: Sequence[PlanLayer], facts: GraphFacts, profile: int
) -> ProjectionFusion:
    wanted = _products(group, facts)
    gemms = [
        layer for layer in layers if layer.type in _GEMM_TYPES and wanted.intersection(layer.nodes)
    ]
    one_gemm = len(gemms) == 1 and wanted.issubset(gemms[0].nodes)
    reasons = []
    if not group.merged:
        reasons.append(group.reason or "the graph holds a matrix for each projection")
    if not gemms:
        reasons.append("no GEMM of the plan names these nodes")
    elif not one_gemm:
        names = ", ".join(layer.name for layer in gemms)
        reasons.append(f"the plan runs {len(gemms)} GEMMs for it: {names}")
    return ProjectionFusion(
        group=group.name,
        merged_in_graph=group.merged,
        one_gemm=one_gemm,
        layer=gemms[0].name if one_gemm else None,
        profile=profile,
        reason="; ".join(reasons),
    )
