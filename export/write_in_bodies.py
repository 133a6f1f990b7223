"""Pass: F.scaled_dot_product_attention inside a branch or a loop is written out plainly.

The other passes do not enter the body of an If, a Loop or a Scan: what it computes depends on
values of the graph around it, at sizes that cannot be asked for. A captured call must be written
all the same, since no file may hold it; so it is written as its definition says, without merging
anything. The sizes of its axes need not be known, but for grouped queries.

Ensures: the numbers of F.scaled_dot_product_attention, with 0 in rows whose keys are all hidden.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from attnport.export import capture_operator
from attnport.export.graph_writer import GraphWriter
from attnport.export.heads import repeat_heads
from attnport.export.records import PassRecord
from attnport.export.unrecognised import bodies


def write_in_bodies(graph: ir.Graph) -> PassRecord:
    """Writes every captured attention in a body; the record says of others why not.

    Args:
        graph: The model's graph, whose bodies are changed.
    """
    changed, notes = 0, []
    for owner, body in bodies(graph):
        where = f"the body of {owner.name or 'a node'} ({owner.op_type})"
        for node in list(body):
            if node.domain != capture_operator.DOMAIN:
                continue
            plain = _Plain(body, node, GraphWriter(body, f"/{node.name}", graph))
            problem = plain.problem()
            if problem:
                notes.append(f"{node.name}: in {where}: left as it is: {problem}")
                continue
            plain.apply()
            changed += 1
            notes.append(f"{node.name}: in {where}: written out, projections not merged")
    return PassRecord(name="in_bodies", changed=changed, notes=tuple(notes))


class _Plain:
    """One captured attention of a body."""

    def __init__(self, body: ir.Graph, node: ir.Node, writer: GraphWriter) -> None:
        self.body, self.node, self.writer = body, node, writer
        inputs: list[ir.Value | None] = [*node.inputs, None]
        query, key, value, self.mask = inputs[:4]
        assert query is not None
        assert key is not None
        assert value is not None
        self.query, self.key, self.value = query, key, value
        self.rank = len(query.shape) if query.shape is not None else 4

    def problem(self) -> str:
        if self.query.dtype is None:
            return "the type of its query is not known"
        if self._grouped() and self._groups() is None:
            return "its grouped queries need known numbers of heads"
        return ""

    def apply(self) -> None:
        writer = self.writer
        dtype = self.query.dtype
        assert dtype is not None
        query = writer.op("Mul", [self.query, self._scale(dtype)], "query_scaled")
        key, value = self._repeated(self.key, "key"), self._repeated(self.value, "value")
        perm = [*range(self.rank - 2), self.rank - 1, self.rank - 2]
        turned = writer.op("Transpose", [key], "key_transposed", {"perm": perm})
        scores = self._masked(writer.op("MatMul", [query, turned], "scores"), dtype)
        weights = writer.op("Softmax", [scores], "softmax", {"axis": -1})
        context = writer.op("MatMul", [weights, value], "context")
        if self.mask is not None:
            largest = writer.reduce_max(scores, [-1], "scores_any")
            hidden = writer.scalar(-math.inf, dtype)
            alive = writer.op("Greater", [largest, hidden], "alive")
            zero = writer.scalar(0.0, dtype)
            context = writer.op("Where", [alive, context, zero], "context_alive")
        old = self.node.outputs[0]
        context.type, context.shape = old.type, old.shape
        writer.insert_before(self.node)
        old.replace_all_uses_with(context, replace_graph_outputs=True)
        self.body.remove(self.node, safe=True)

    def _scale(self, dtype: ir.DataType) -> ir.Value:
        """The attribute, or 1/√Dh, computed where Dh is not known."""
        writer = self.writer
        if "scale" in self.node.attributes:
            return writer.scalar(self.node.attributes.get_float("scale"), dtype)
        size = self.query.shape[-1] if self.query.shape is not None else None
        if isinstance(size, int):
            return writer.scalar(1 / math.sqrt(size), dtype)
        counted = writer.sizes(self.query, self.rank - 1, self.rank, "head_size")
        number = writer.op("Cast", [counted], "head_size_number", {"to": dtype.value})
        return writer.op("Reciprocal", [writer.op("Sqrt", [number], "head_size_root")], "scale")

    def _grouped(self) -> bool:
        return bool(self.node.attributes.get_int("enable_gqa", 0))

    def _groups(self) -> tuple[int, int] | None:
        """H and Hkv."""
        if self.rank != 4 or self.query.shape is None or self.key.shape is None:
            return None
        heads, shared = self.query.shape[1], self.key.shape[1]
        return (heads, shared) if isinstance(heads, int) and isinstance(shared, int) else None

    def _repeated(self, value: ir.Value, name: str) -> ir.Value:
        groups = self._groups() if self._grouped() else None
        if groups is None:
            return value
        heads, shared = groups
        return repeat_heads(self.writer, value, np.arange(heads) // (heads // shared), name)

    def _masked(self, scores: ir.Value, dtype: ir.DataType) -> ir.Value:
        writer = self.writer
        hidden = writer.scalar(-math.inf, dtype)
        if self.node.attributes.get_int("is_causal", 0):
            visible = self._causal()
            zero = writer.scalar(0.0, dtype)
            bias = writer.op("Where", [visible, zero, hidden], "causal_bias")
            return writer.op("Add", [scores, bias], "masked")
        if self.mask is None:
            return scores
        if self.mask.dtype == ir.DataType.BOOL:
            return writer.op("Where", [self.mask, scores, hidden], "masked")
        return writer.op("Add", [scores, self.mask], "masked")

    def _causal(self) -> ir.Value:
        """(N,T): whether key j is at or before query i."""
        writer = self.writer
        zero, one = (writer.scalar(n, ir.DataType.INT64) for n in (0, 1))
        axis = self.rank - 2
        rows = writer.op("Range", [zero, writer.size(self.query, axis, "queries"), one], "rows")
        columns = writer.op("Range", [zero, writer.size(self.key, axis, "keys"), one], "columns")
        return writer.greater_or_equal(
            writer.unsqueeze(rows, [1], "rows_column"), columns, "causal"
        )
