"""Writes query, key and value as heads, in the order that the form of attention wants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.heads import (
    columns_in_order,
    is_canonical,
    packed_heads,
    repeat_heads,
    write_heads,
)
from attnport.export.movement import without_factors
from attnport.export.records import Form
from attnport.export.sites import AttentionSite, Operand
from attnport.export.taps import Tap, repeated_heads


class OperandWriter:
    """Writes the operands of one attention.

    Args:
        writer: Where the nodes go.
        site: The attention.
        direct: The taps of those operands that are a projection, moved.
        graph: The graph at concrete sizes.
        form: What the attention is written as: the pattern takes keys transposed.
    """

    def __init__(
        self,
        writer: GraphWriter,
        site: AttentionSite,
        direct: Mapping[Operand, Tap],
        graph: ConcreteGraph,
        form: Form,
    ) -> None:
        self._writer, self._site, self._direct, self._graph = writer, site, direct, graph
        self.keys_transposed = form == "pattern"

    def write(self, which: Operand) -> tuple[ir.Value, float]:
        """The operand as heads, one for each query head, and the factor taken out of it."""
        heads, scale = self._heads(which)
        if which == "query":
            return heads, scale
        return self._repeated(which, heads), scale

    def _heads(self, which: Operand) -> tuple[ir.Value, float]:
        tap, wanted = self._direct.get(which), which == "key" and self.keys_transposed
        if tap is None or columns_in_order(tap.layout) is None or tap.layout.layout == "flat":
            return self._kept_heads(which)
        if is_canonical(tap) and tap.transposed == wanted:
            end = tap.chain.nodes[-1]
            unscaled = tap.chain.nodes[-2].outputs[0] if end.op_type == "Mul" else tap.chain.end
            return unscaled, tap.chain.scale
        distinct, index = tap.layout.distinct_heads()
        heads = packed_heads(tap)
        if heads is None:
            source = self._columns(tap, which, int(distinct.size))
            heads = write_heads(
                self._writer, source, tap.layout.layout, distinct.shape, which, transposed=wanted
            )
        elif wanted:
            perm = {"perm": [0, 1, 3, 2]}
            heads = self._writer.op("Transpose", [heads], "key_transposed", perm)
        return repeat_heads(self._writer, heads, index, which), tap.chain.scale

    def _kept_heads(self, which: Operand) -> tuple[ir.Value, float]:
        """An operand that something else than a projection makes; a repetition becomes a Gather."""
        chain = self._site.chains[which]
        turned = which == "key" and self._site.key_transposed
        found = repeated_heads(chain, self._graph, transposed=turned)
        types = [node.op_type for node in chain.nodes]
        if found is None or types in (["Gather"], ["Gather", "Transpose"]):
            value, factor = self._site.operand(which), 1.0
            if which == "key":
                value, factor = without_factors(value, [self._graph])
            return self._turned(which, value), factor
        heads = repeat_heads(self._writer, *found, which)
        if which == "key" and self.keys_transposed:
            perm = {"perm": [0, 1, 3, 2]}
            heads = self._writer.op("Transpose", [heads], "key_transposed", perm)
        return heads, chain.scale

    def _repeated(self, which: Operand, heads: ir.Value) -> ir.Value:
        """Key/value heads of the operator's grouped queries: head h is head h // (H/Hkv)."""
        queries, own = self._head_count("query"), self._head_count(which)
        if queries is None or own is None or own == queries or self._site.source == "pattern":
            return heads
        index = np.arange(queries) // (queries // own)
        return repeat_heads(self._writer, heads, index, which)

    def _head_count(self, which: Operand) -> int | None:
        layout = self._site.layouts.get(which)
        if layout is not None:
            return layout.heads
        shape = self._graph.shape(self._site.operand(which))
        return shape[1] if shape is not None and len(shape) == 4 else None

    def _turned(self, which: Operand, value: ir.Value) -> ir.Value:
        """A key whose last two axes stand as the form wants them."""
        if which != "key" or self._site.key_transposed == self.keys_transposed:
            return value
        name = "key_transposed" if self.keys_transposed else "key_heads"
        return self._writer.op("Transpose", [value], name, {"perm": [0, 1, 3, 2]})

    def _columns(self, tap: Tap, which: Operand, width: int) -> ir.Value:
        """The (B,N,E) or (N,B,E) that the heads are made of, cut out of a packed projection."""
        first = tap.chain.nodes[0] if tap.chain.nodes else None
        if first is not None and first.op_type == "Split":
            following = tap.chain.nodes[1].inputs[0]
            shape = self._graph.shape(following) if following is not None else None
            if shape is not None and len(shape) == 3 and shape[-1] == width:
                assert following is not None
                return following
        shape = self._graph.shape(tap.chain.source)
        if shape is not None and shape[-1] == width:
            return tap.chain.source
        start = columns_in_order(tap.layout)
        assert start is not None
        bounds = [self._writer.integers([n]) for n in (start, start + width, -1)]
        return self._writer.op("Slice", [tap.chain.source, *bounds], f"{which}_columns")
