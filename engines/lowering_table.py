"""Which form of attention, or of the graph, an engine is given: the rules and their reasons.

The canonical pattern is what TensorRT fuses. ONNX Runtime on CUDA runs a pattern as it stands, a
kernel for each node, and the scores of all heads are written out; one node of its own is what
reaches its fused kernels. Sources: onnxruntime's kernels for CUDA (MultiHeadAttention is registered
for float and half; issues 27485 and 28351 and pull request 27542 for the ONNX operator). **Unrun on
a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from attnport.export.records import AttentionInfo
from attnport.export.sequence_first import turning_pays

TensorRtForm = Literal["as-written", "batch-first", "sequence-first", "separate"]
LoweredForm = Literal["pattern", "attention", "multi-head-attention", "chunks"]


@dataclass(frozen=True)
class Situation:
    """What a rule may look at.

    Attributes:
        info: The attention.
        dtype: The bundle's dtype.
        has_rows: Whether queries, keys and values stand in the graph as (B,N,H·Dh), before the
            heads are parted.
        restampable: Whether the graph means the same at opset 23.
        ort_version: Of onnxruntime, such as (1, 31).
        chunks: Into how many parts the queries are worth cutting; 1 for none.
    """

    info: AttentionInfo
    dtype: str
    has_rows: bool
    restampable: bool
    ort_version: tuple[int, ...]
    chunks: int = 1

    @property
    def grouped(self) -> bool:
        return self.info.heads != self.info.kv_heads


@dataclass(frozen=True)
class Rule:
    """One line of a table: the first that applies decides."""

    applies: Callable[[Situation], bool]
    form: LoweredForm
    reason: str


# The ONNX operator calls the fused kernels itself since then (pull request 27542).
_FUSED_OPERATOR = (1, 25)

ORT_CUDA: tuple[Rule, ...] = (
    Rule(
        lambda at: not at.info.rewritable,
        "pattern",
        "it was not recognised, so it cannot be rewritten",
    ),
    Rule(
        lambda at: at.dtype not in {"float32", "float16"},
        "pattern",
        "onnxruntime takes no numpy arrays of this dtype, so the graph is not run",
    ),
    Rule(
        lambda at: at.has_rows and not at.grouped,
        "multi-head-attention",
        "com.microsoft MultiHeadAttention takes rows (B,N,H·Dh) as the projections leave them, so "
        "four transpositions fall away, and has had fused kernels since 1.16",
    ),
    Rule(
        lambda at: not at.restampable,
        "pattern",
        "the graph has operators that mean something else at opset 23, where Attention begins",
    ),
    Rule(
        lambda at: at.ort_version < _FUSED_OPERATOR,
        "pattern",
        "before 1.25 the operator runs unfused kernels on CUDA, takes no bool mask and no grouped "
        "queries: install a newer onnxruntime-gpu",
    ),
    Rule(
        lambda at: at.grouped,
        "attention",
        "MultiHeadAttention has no grouped queries, and the ONNX operator has",
    ),
    Rule(
        lambda at: True,
        "attention",
        "queries, keys and values are parted into heads before anything else is done with them, "
        "which is how the ONNX operator takes them",
    ),
)

# All forms of attention lie within a tenth of each other on the CPU. Chunks: see
# `causal_chunks`.
ORT_CPU: tuple[Rule, ...] = (
    Rule(
        lambda at: at.chunks > 1,
        "chunks",
        "a long causal sequence: a chunk of queries leaves out the keys after it, and the scores "
        "that exist at one time shrink by the number of chunks",
    ),
    Rule(lambda at: True, "pattern", "no form of attention is clearly faster on the CPU"),
)
# TensorRT fuses the pattern, and makes fewer kernels of it than of the operator.
ORT_TENSORRT: tuple[Rule, ...] = (
    Rule(lambda at: True, "pattern", "TensorRT fuses the pattern, with the fewest kernels"),
)

TABLES: dict[str, tuple[Rule, ...]] = {
    "ort-cpu": ORT_CPU,
    "ort-cuda": ORT_CUDA,
    "ort-tensorrt": ORT_TENSORRT,
}


def choose_form(kind: str, situation: Situation) -> Rule:
    """The rule that decides for a kind of engine."""
    return next(rule for rule in TABLES[kind] if rule.applies(situation))


def causal_chunks(opt: int) -> int:
    """Into how many chunks the CPU cuts the queries of a causal attention.

    Args:
        opt: The usual number of queries. The limits are those of a sweep with two threads, all
            forms in turns, time over torch SDPA's, plain and cut: 0.97 and 0.95 to 1.00 at 128
            tokens, 1.13 and 1.05 at 512, 1.13 and 0.98 at 1024, 1.87 and 1.25 at 2048, 1.96 and
            1.22 at 4096. `make bench-lowering` measures it on another machine; what it found last,
            and how loaded that machine was, stands in benchmarks/lowering/results.md.
    """
    if opt < 256:
        return 1
    return 4 if opt < 1024 else 8


@dataclass(frozen=True)
class GraphSituation:
    """What a rule for a whole graph may look at.

    Attributes:
        refits: Whether weights are put into the plan later, by the names in `model.onnx`.
        ways: Transpositions into and out of heads.
        transpositions: What turning the rows adds beside them.
        exposed: Whether a product reads rows right behind such a transposition, which nothing
            (a norm, say) then takes over.
        undone: Transpositions of rows that the source wrote, and that fall away batch-first.
        narrowed: Products of queries and keys that the source widens to float32, and that are in
            half precision in every form but model.onnx itself.
        separable: Products whose columns are parted unequally.
    """

    refits: bool
    ways: int
    transpositions: int
    exposed: bool
    undone: int
    narrowed: int = 0
    separable: int = 0


@dataclass(frozen=True)
class GraphRule:
    """One line of the table for whole graphs: the first that applies decides."""

    applies: Callable[[GraphSituation], bool]
    form: TensorRtForm
    reason: str


# Kernels counted in plans of TensorRT for RTX 1.7.1, fp16, D=512, H=8; form "auto" counts.
TENSORRT: tuple[GraphRule, ...] = (
    GraphRule(
        lambda at: at.refits,
        "as-written",
        "weights are put into this plan later, from model.onnx",
    ),
    GraphRule(
        lambda at: at.separable > 0,
        "separate",
        "the columns of a product are parted unequally and read by norms, for which TensorRT makes "
        "copies of the parts; of separate products it makes one GEMM itself (two layers of Qwen3 "
        "with experts: 40 kernels, else 44; of Qwen3: 13 in its attentions, else 17)",
    ),
    GraphRule(
        lambda at: turning_pays(at.ways, at.transpositions) and not at.exposed,
        "sequence-first",
        "the attention kernel takes rows with the sequence before the batch, and there are more "
        "ways into and out of heads than transpositions at the borders (four pre-LN blocks: 17 "
        "kernels, else 19)",
    ),
    GraphRule(
        lambda at: at.undone > 0,
        "batch-first",
        "the source turns rows before its heads and back after them, which falls away (one "
        "nn.MultiheadAttention: 5 kernels, else 8)",
    ),
    GraphRule(
        lambda at: at.narrowed > 0,
        "batch-first",
        "the source widens queries and keys to float32 to multiply them, which TensorRT does not "
        "fuse; its attention kernel takes them in half precision and adds up in float32, so that "
        "the scores are the same (two layers of GPT-Neo: 19 kernels, else 29)",
    ),
    GraphRule(
        lambda at: turning_pays(at.ways, at.transpositions),
        "as-written",
        "a projection reads the rows right at the border, so nothing takes over the transposition "
        "there (a bare attention: 8 kernels sequence-first, else 5; two post-LN blocks: 13, else "
        "10)",
    ),
    GraphRule(
        lambda at: True,
        "as-written",
        "turning the rows would add as many transpositions as there are ways into and out of heads",
    ),
)


def choose_graph_form(situation: GraphSituation) -> GraphRule:
    """The rule that decides for TensorRT."""
    return next(rule for rule in TENSORRT if rule.applies(situation))
