"""One attention of a graph, as the passes hold it between finding and rewriting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import Chain, HeadLayout, head_layout, push_indices, trace_back
from attnport.export.records import AttentionInfo

Operand = Literal["query", "key", "value"]
OPERANDS: tuple[Operand, ...] = ("query", "key", "value")


@dataclass(frozen=True)
class MaskTerm:
    """Something that hides or shifts scores.

    Attributes:
        kind: "bool" hides where `value` is False or 0 (otherwise, if inverted); "additive" is
            added.
        value: The mask, which broadcasts to (B,H,N,T).
        inverted: Whether True means hidden.
        fill: What a hidden score becomes.
        axes: Where axes of size 1 are put into the value before it broadcasts.
    """

    kind: Literal["bool", "additive"]
    value: ir.Value
    inverted: bool = False
    fill: float = -math.inf
    axes: tuple[int, ...] = ()

    def data(self, graph: ConcreteGraph) -> np.ndarray | None:
        """The mask at concrete sizes, where it is known."""
        data = graph.data(self.value)
        return np.expand_dims(data, self.axes) if data is not None else None

    def shape(self, graph: ConcreteGraph) -> tuple[int, ...] | None:
        """Its concrete shape, where it is known."""
        shape = graph.shape(self.value)
        return (
            np.expand_dims(np.empty(shape, bool), self.axes).shape if shape is not None else None
        )

    def visible(self, data: np.ndarray) -> np.ndarray:
        """Of a bool term's data: where it leaves scores as they are."""
        truth = data.astype(bool)
        return ~truth if self.inverted else truth


@dataclass
class AttentionSite:
    """An attention, found.

    Attributes:
        name: "attn0", …
        source: Whether it stands as the operator or as a pattern.
        nodes: The nodes from the scores to the context, without those that only feed them.
        query: (B,H,N,Dh), or (B·H,N,Dh), or (B,N,E) for the operator's three-dimensional form.
        key: As query with T for N; its last two axes swapped where `key_transposed`.
        value: As key, never swapped.
        context: The result, of query's shape.
        scale: The factor on the scores that stands between the products.
        terms: What hides or shifts scores, in the order of application.
        causal: Whether keys after the query are hidden by shape alone.
        heads: H, where an attribute says so (the operator's three-dimensional form).
        kv_heads: Hkv, likewise.
        softmax_dtype: The dtype that the softmax runs in, where the graph casts to one.
        masks_widened: Whether masks are applied in that dtype, too, and not before the cast.
        softcap: c where the scores are c·tanh(scores/c); None where they are not capped.
        weights_returned: Whether the probabilities are used for something else as well.
        sink: Whether the softmax has one more score a row, of which no value is taken.
        sizes: (H,Hkv,Dh) as the operands' shapes say them, where these are four-dimensional.
        problem: Why it is not understood; empty where it is.
    """

    name: str
    source: Literal["operator", "pattern"]
    nodes: list[ir.Node]
    query: ir.Value
    key: ir.Value
    value: ir.Value
    context: ir.Value
    key_transposed: bool = False
    scale: float = 1.0
    terms: list[MaskTerm] = field(default_factory=list)
    causal: bool = False
    dead_rows: bool = False
    heads: int | None = None
    kv_heads: int | None = None
    softmax_dtype: ir.DataType | None = None
    masks_widened: bool = False
    softcap: float | None = None
    weights_returned: bool = False
    sink: bool = False
    sizes: tuple[int, int, int] | None = None
    problem: str = ""
    chains: dict[Operand, Chain] = field(default_factory=dict)
    layouts: dict[Operand, HeadLayout] = field(default_factory=dict)

    def operand(self, which: Operand) -> ir.Value:
        return {"query": self.query, "key": self.key, "value": self.value}[which]

    def describe(self) -> AttentionInfo:
        """What `inspect` and the bundle say of it."""
        kinds = {term.kind for term in self.terms}
        mask: Literal["none", "bool", "additive", "bool+additive"] = "none"
        if kinds:
            mask = "bool+additive" if len(kinds) == 2 else next(iter(kinds))
        heads, kv_heads, head_size = self._head_counts()
        return AttentionInfo(
            name=self.name,
            source=self.source,
            nodes=tuple(node.name or "" for node in self.nodes),
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            scale=self.total_scale,
            mask=mask,
            causal=self.causal,
            dead_rows=self.dead_rows,
            softcap=self.softcap,
            weights_returned=self.weights_returned,
            sink=self.sink,
            recognised=not self.problem,
            reason=self.problem or self.left_alone,
        )

    @property
    def left_alone(self) -> str:
        """Why it is understood and still not rewritten; empty where it is rewritten."""
        if self.softcap is not None:
            return "softcap: no engine has a fused kernel for it, so it is left as it is"
        if self.sink:
            return (
                "sink: the softmax has one more score a row, of which no value is taken, and no "
                "engine has a fused kernel for it, so it is left as it is"
            )
        if self.weights_returned:
            return (
                "the attention weights are used or returned as well, which no fused kernel gives: "
                "call it with need_weights=False, or return the output alone"
            )
        return ""

    def _head_counts(self) -> tuple[int | None, int | None, int | None]:
        """H, Hkv and Dh: of the layouts, else of attributes, else of shapes."""
        query, key = self.layouts.get("query"), self.layouts.get("key")
        sizes = self.sizes or (None, None, None)
        return (
            query.heads if query else self.heads or sizes[0],
            len(key.distinct_heads()[0]) if key else self.kv_heads or sizes[1],
            query.head_size if query else sizes[2],
        )

    @property
    def total_scale(self) -> float:
        """The factor on Q·Kᵀ, wherever the graph applies it."""
        total = self.scale
        for which in OPERANDS[:2]:
            if which in self.chains:
                total *= self.chains[which].scale
        return total


def find_layouts(site: AttentionSite, graphs: list[ConcreteGraph]) -> None:
    """Finds for query, key and value where their heads come from; what has no layout is left out.

    The layout must be the same at every size that is asked at.
    """
    for which in OPERANDS:
        chain = trace_back(site.operand(which), graphs)
        site.chains[which] = chain
        found = [_layout(site, which, chain, graph) for graph in graphs]
        first = found[0]
        if first is not None and all(f is not None and f.same_as(first) for f in found):
            site.layouts[which] = first
    found_sizes = {_sizes(site, graph) for graph in graphs}
    site.sizes = found_sizes.pop() if len(found_sizes) == 1 else None


def _sizes(site: AttentionSite, graph: ConcreteGraph) -> tuple[int, int, int] | None:
    query, key = graph.shape(site.query), graph.shape(site.value)
    if query is None or key is None or len(query) != 4 or len(key) != 4:
        return None
    return query[1], key[1], query[3]


def _layout(
    site: AttentionSite, which: Operand, chain: Chain, graph: ConcreteGraph
) -> HeadLayout | None:
    indices = push_indices(chain, graph)
    shape = graph.shape(chain.source)
    if indices is None or shape is None or len(shape) not in (2, 3):
        return None
    if which == "key" and site.key_transposed:
        indices = indices.swapaxes(-1, -2)
    four = _with_heads(site, which, indices, shape)
    return head_layout(four, shape) if four is not None else None


def _with_heads(
    site: AttentionSite, which: Operand, indices: np.ndarray, source: tuple[int, ...]
) -> np.ndarray | None:
    """Gives the indices the axes B, H, N, Dh."""
    if indices.ndim == 4:
        return indices
    if indices.ndim != 3:
        return None
    heads = site.heads if which == "query" else site.kv_heads
    if heads is not None:  # the operator's (B,N,H·Dh)
        batch, tokens, width = indices.shape
        return indices.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)
    return _split_leading_axis(indices, source)


def _split_leading_axis(indices: np.ndarray, source: tuple[int, ...]) -> np.ndarray | None:
    """(B·H,N,Dh) -> (B,H,N,Dh), where the source tells B: its leading axes are B and N."""
    if len(source) != 3:
        return None
    tokens = indices.shape[1]
    batch = source[0] if source[1] == tokens else source[1]
    if indices.shape[0] % batch:
        return None
    return indices.reshape(batch, indices.shape[0] // batch, *indices.shape[1:])
