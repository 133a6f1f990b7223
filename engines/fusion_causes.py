"""Why TensorRT has no fused kernel for an attention, as far as that was measured.

With TensorRT for RTX 1.7.1; where no cause is known, the report lists what it was split into.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attnport.axes import Axis
from attnport.engines.graph_facts import GraphFacts, Shape
from attnport.export.records import AttentionInfo

# fp16 and bf16: every size from 9 to 256 was tried, causal, and fused.
MIN_FUSED_HEAD_SIZE, MAX_FUSED_HEAD_SIZE = 9, 256


def fits_the_kernel(head_size: int | None) -> bool:
    """Whether fused kernels take heads of that size."""
    return head_size is not None and MIN_FUSED_HEAD_SIZE <= head_size <= MAX_FUSED_HEAD_SIZE


def known_cause(
    attention: AttentionInfo,
    dtype: str,
    core: frozenset[str],
    facts: GraphFacts,
    axes: Mapping[str, Axis],
) -> str:
    """The cause, as a clause; "" for none that is known.

    Args:
        attention: The attention.
        dtype: The bundle's dtype.
        core: The nodes that one kernel would have to cover.
        facts: What the graph says of its nodes.
        axes: The ranges of the axes in the profile.
    """
    head_size = attention.head_size
    if dtype in {"float32", "float64"}:
        return f"TensorRT has no fused attention kernel for {dtype}: export in float16 or bfloat16"
    if head_size is not None and not fits_the_kernel(head_size):
        return (
            f"its head size is {head_size}, and TensorRT's fused kernels take "
            f"{MIN_FUSED_HEAD_SIZE} to {MAX_FUSED_HEAD_SIZE}"
        )
    if any(facts.op_types.get(node) == "Tanh" for node in attention.nodes):
        return "it caps its scores with tanh (softcap), which no fused kernel of TensorRT does"
    if attention.sink:
        return (
            "its softmax has one more score a row (a sink), for which TensorRT has no fused kernel"
        )
    if any(_returns_weights(node, facts) for node in attention.nodes):
        return "its softmax weights are an output of the graph, so they must be written out"
    if attention.heads in (1, None) and facts.unit_batch_nodes.intersection(core):
        return (
            "batch times heads is a constant 1, for which TensorRT prefers separate kernels: "
            "declare the batch as an axis, or give it more than one head"
        )
    return _cause_in_profile(facts.shapes.get(attention.nodes[0]), axes)


def _cause_in_profile(scores: Shape | None, axes: Mapping[str, Axis]) -> str:
    """What the sizes of one profile prevent. Scores are (B,H,N,T)."""
    if scores is None or len(scores) < 2:
        return ""
    sizes = [_only_size(dim, axes) for dim in scores]
    if sizes[-2:] == [1, 1]:
        return (
            "in this profile there is one query and one key, for which TensorRT prefers separate "
            "kernels"
        )
    known = [size for size in sizes[:-2] if size is not None]
    if len(known) == len(sizes) - 2 and math.prod(known) == 1:
        return (
            "in this profile batch times heads is 1, for which TensorRT prefers separate kernels"
        )
    return ""


def _only_size(dim: int | str | None, axes: Mapping[str, Axis]) -> int | None:
    """The one size that a dimension has in the profile; None where it has several."""
    if not isinstance(dim, str):
        return dim
    axis = axes.get(dim)
    return axis.min if axis is not None and axis.min == axis.max else None


def _returns_weights(node: str, facts: GraphFacts) -> bool:
    return node in facts.output_nodes and facts.op_types.get(node) == "Softmax"
