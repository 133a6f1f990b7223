"""What a TensorRT plan says of every attention and every group of projections.

A claim of fusion needs two witnesses that agree: the builder's table, in which one attention
kernel covers the scores, the softmax and the context of the attention, and the plan, which must
name that very kernel. That ONNX nodes are called "attention" proves nothing.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping, Sequence

from attnport.engines.graph_facts import GraphFacts
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
# TensorRT for RTX 1.7.1, fp16 and bf16: every size from 9 to 256 was tried, causal, and fused.
MIN_FUSED_HEAD_SIZE, MAX_FUSED_HEAD_SIZE = 9, 256


def fusion_report(
    attentions: Sequence[AttentionInfo],
    groups: Sequence[ProjectionGroup],
    dtype: str,
    layers: Sequence[PlanLayer],
    plan: bytes | mmap.mmap,
    facts: GraphFacts | None = None,
) -> FusionReport:
    """Judges every attention and projection group of a graph by the plan built from it.

    Args:
        attentions: The graph's attentions.
        groups: Its groups of projections.
        dtype: The bundle's dtype, for the reasons.
        layers: The builder's table, of all profiles.
        plan: The plan's bytes, or the mapped file.
        facts: What the graph says of its nodes; without it some reasons stay general.
    """
    known = facts or GraphFacts()
    kernels = attention_kernels(plan)
    profiles = sorted({layer.profile for layer in layers}) or [0]
    return FusionReport(
        attentions=tuple(
            _attention_fusion(
                attention, dtype, _of_profile(layers, profile), kernels, known, profile
            )
            for attention in attentions
            for profile in profiles
        ),
        projection_groups=tuple(
            _projection_fusion(group, _of_profile(layers, 0)) for group in groups
        ),
        kernel_count=sum(layer.is_kernel for layer in _of_profile(layers, 0)),
        layers=tuple(layers),
    )


def _of_profile(layers: Iterable[PlanLayer], profile: int) -> list[PlanLayer]:
    return [layer for layer in layers if layer.profile == profile]


def _attention_fusion(
    attention: AttentionInfo,
    dtype: str,
    layers: Sequence[PlanLayer],
    kernels: Mapping[str, str | None],
    facts: GraphFacts,
    profile: int,
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
        reason = _why_not_fused(attention, dtype, layers, core, facts)
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


def _why_not_fused(
    attention: AttentionInfo,
    dtype: str,
    layers: Sequence[PlanLayer],
    core: frozenset[str],
    facts: GraphFacts,
) -> str:
    parts = [layer for layer in layers if layer.is_kernel and core.intersection(layer.nodes)]
    split = ", ".join(f"{layer.name} ({layer.type})" for layer in parts)
    cause = _known_cause(attention, dtype, core, facts)
    if cause:
        return f"{cause}; it runs as {len(parts)} kernels"
    if not parts:
        return "none of its nodes is named in the builder's table"
    return f"TensorRT split it into: {split}"


def _known_cause(
    attention: AttentionInfo, dtype: str, core: frozenset[str], facts: GraphFacts
) -> str:
    """The causes that were measured with TensorRT for RTX 1.7.1, as a clause; "" for none."""
    head_size = attention.head_size
    if dtype in {"float32", "float64"}:
        return f"TensorRT has no fused attention kernel for {dtype}: export in float16 or bfloat16"
    if head_size is not None and not MIN_FUSED_HEAD_SIZE <= head_size <= MAX_FUSED_HEAD_SIZE:
        return (
            f"its head size is {head_size}, and TensorRT's fused kernels take "
            f"{MIN_FUSED_HEAD_SIZE} to {MAX_FUSED_HEAD_SIZE}"
        )
    if any(facts.op_types.get(node) == "Tanh" for node in attention.nodes):
        return "it caps its scores with tanh (softcap), which no fused kernel of TensorRT does"
    if any(_returns_weights(node, facts) for node in attention.nodes):
        return "its softmax weights are an output of the graph, so they must be written out"
    if attention.heads in (1, None) and facts.unit_batch_nodes.intersection(core):
        return (
            "batch times heads is a constant 1, for which TensorRT prefers separate kernels: "
            "declare the batch as an axis, or give it more than one head"
        )
    return ""


def _returns_weights(node: str, facts: GraphFacts) -> bool:
    return node in facts.output_nodes and facts.op_types.get(node) == "Softmax"


def _projection_fusion(group: ProjectionGroup, layers: Sequence[PlanLayer]) -> ProjectionFusion:
    wanted = set(group.nodes)
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
        reason="; ".join(reasons),
    )
