"""Lowering for the CPU: queries of long causal attentions are cut into chunks.

    chunk i:  rows start..end of the queries, keys and values 0..end
              Softmax(q_i·k_iᵀ + Where(row >= column, 0, -inf)) · v_i
    all:      Concat of the chunks, along the queries

Half of the products fall away as the chunks get many, and the scores that exist at one time shrink
by their number: (B,H,ceil(N/C),T) in place of (B,H,N,T). Bounds are computed in the graph, so any N
works; with N < C some chunks are empty. TensorRT fuses the plain form and gets this from its kernel.

Requires: purely causal attentions in the canonical form (query i sees keys 0..i, no other mask).
Ensures: the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import AttentionInfo, PassRecord


@dataclass(frozen=True)
class CausalNodes:
    """The nodes of one causal attention: MatMul, Add of the bias, Softmax, MatMul."""

    scores: ir.Node
    masked: ir.Node
    softmax: ir.Node
    context: ir.Node

    @property
    def query(self) -> ir.Value:
        """(B,H,N,Dh)."""
        return _present(self.scores.inputs[0])


def find_causal_nodes(graph: ir.Graph, info: AttentionInfo) -> CausalNodes | None:
    """The nodes to cut, if the attention is purely causal and stands in the canonical form."""
    if not info.causal or info.mask != "none" or not info.rewritable:
        return None
    named = set(info.nodes)
    for node in graph:
        if node.op_type != "Softmax" or node.name not in named:
            continue
        masked = node.inputs[0].producer() if node.inputs[0] is not None else None
        uses = list(node.outputs[0].uses())
        if masked is None or masked.op_type != "Add" or len(uses) != 1:
            continue
        scores = masked.inputs[0].producer() if masked.inputs[0] is not None else None
        context = uses[0].node
        if scores is None or scores.op_type != "MatMul" or context.op_type != "MatMul":
            continue
        only = all(len(list(one.outputs[0].uses())) == 1 for one in (scores, masked))
        typed = scores.inputs[0] is not None and scores.inputs[0].dtype is not None
        if only and typed and uses[0].idx == 0 and node.attributes.get_int("axis", -1) in (-1, 3):
            return CausalNodes(scores, masked, node, context)
    return None


def chunk_causal(
    graph: ir.Graph, chosen: Mapping[str, int], infos: Mapping[str, AttentionInfo]
) -> PassRecord:
    """Cuts the attentions that are named.

    Args:
        graph: The graph, which is changed.
        chosen: For each attention the number of chunks, 2 or more.
        infos: The attentions, by name.
    """
    notes = []
    for name, chunks in chosen.items():
        nodes = find_causal_nodes(graph, infos[name])
        if nodes is None:
            continue
        _Chunker(graph, name, nodes).write(chunks)
        notes.append(f"{name}: {chunks} chunks")
    return PassRecord(name="chunk_causal", changed=len(notes), notes=tuple(notes))


class _Chunker:
    """Writes the chunks of one attention."""

    def __init__(self, graph: ir.Graph, name: str, nodes: CausalNodes) -> None:
        self._graph, self._nodes = graph, nodes
        self._writer = GraphWriter(graph, f"/{name}/chunks")
        self._op = self._writer.op

    def write(self, chunks: int) -> None:
        nodes = self._nodes
        queries, keys = nodes.query, _present(nodes.scores.inputs[1])
        length = self._op("Shape", [queries], "queries", {"start": 2, "end": 3})
        known = self._op("Shape", [keys], "keys", {"start": 3, "end": 4})
        integers = self._writer.integers
        rounded = self._op("Add", [length, integers([chunks - 1])], "rounded")
        size = self._op("Div", [rounded, integers([chunks])], "size")
        start, parts = integers([0]), []
        for number in range(1, chunks + 1):
            reached = self._op("Mul", [size, integers([number])], "reached")
            end = self._op("Min", [reached, length], "end")
            parts.append(self._chunk(queries, keys, start, end, known))
            start = end
        context = nodes.context.outputs[0]
        joined = self._op("Concat", parts, "context", {"axis": 2})
        joined.type, joined.shape = context.type, context.shape
        self._writer.insert_before(nodes.context)
        context.replace_all_uses_with(joined, replace_graph_outputs=True)
        self._graph.remove([nodes.context, nodes.softmax, nodes.masked, nodes.scores], safe=True)

    def _chunk(
        self, queries: ir.Value, keys: ir.Value, start: ir.Value, end: ir.Value, known: ir.Value
    ) -> ir.Value:
        """softmax(q·kᵀ + bias)·v of the rows start..end; the bounds are vectors of one number."""
        zero, axis_2, axis_3 = (self._writer.integers([n]) for n in (0, 2, 3))
        last = self._op("Min", [end, known], "last")
        q = self._op("Slice", [queries, start, end, axis_2], "query")
        k = self._op("Slice", [keys, zero, last, axis_3], "key")
        v = self._op("Slice", [self._nodes.context.inputs[1], zero, last, axis_2], "value")
        scores = self._op("MatMul", [q, k], "scores")
        biased = self._op("Add", [scores, self._bias(start, end, last)], "masked")
        weights = self._op("Softmax", [biased], "softmax", {"axis": -1})
        return self._op("MatMul", [weights, v], "part")

    def _bias(self, start: ir.Value, end: ir.Value, last: ir.Value) -> ir.Value:
        """(rows, keys): 0 where the row sees the key, else -inf; of this chunk alone."""
        one = self._writer.constant(np.array(1, np.int64), "int64_scalar_1")
        zero = self._writer.constant(np.array(0, np.int64), "int64_scalar_0")
        bounds = [
            self._op("Squeeze", [value, self._writer.integers([0])], "bound")
            for value in (start, end, last)
        ]
        rows = self._op("Range", [bounds[0], bounds[1], one], "rows")
        column = self._op("Unsqueeze", [rows, self._writer.integers([1])], "rows_column")
        columns = self._op("Range", [zero, bounds[2], one], "columns")
        visible = self._op("GreaterOrEqual", [column, columns], "visible")
        dtype = self._nodes.query.dtype
        assert dtype is not None
        numbers = [self._writer.scalar(number, dtype) for number in (0.0, -np.inf)]
        return self._op("Where", [visible, *numbers], "bias")


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
