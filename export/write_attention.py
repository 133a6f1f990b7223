"""Pass: every attention is written as the canonical pattern, or as the ONNX operator.

    q·scale -> MatMul(q, kᵀ) -> mask -> Softmax -> MatMul(p, v)

Requires: sites found in this very graph.
Ensures: the same numbers, with the specified result (0 before W_O's bias) on rows whose keys are
all hidden; the heads made and merged in the canonical way where that is a matter of moving
elements.

The pattern, and not the operator, is the default: TensorRT for RTX 1.7 makes one kernel of either,
but builds the operator in fp16 and bf16 alone and wraps it in four copies (19 kernels against 34
for four pre-LN blocks), and ONNX Runtime 1.32 refuses the operator with a mask of one query row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir

from attnport.export import capture_operator
from attnport.export.concrete import ConcreteGraph
from attnport.export.context_rows import (
    MergedHeads,
    flat_output,
    guard_is_redundant,
    guard_on,
    guards_of,
    merged_heads,
    output_product,
)
from attnport.export.graph_writer import GraphWriter
from attnport.export.heads import (
    columns_in_order,
    is_canonical,
)
from attnport.export.operands import OperandWriter
from attnport.export.records import Form, PassRecord
from attnport.export.sites import OPERANDS, AttentionSite
from attnport.export.taps import find_taps
from attnport.export.write_masks import MaskWriter, operator_can_hide


def write_attention(
    graph: ir.Graph,
    sites: Sequence[AttentionSite],
    graphs: Sequence[ConcreteGraph],
    fed: Sequence[ConcreteGraph],
    form: Form,
) -> PassRecord:
    """Writes every recognised attention; the record says of the others why not.

    Args:
        graph: The graph, which is changed.
        sites: Its attentions.
        graphs: The graph at concrete sizes.
        fed: The graph at concrete sizes with random masks as inputs.
        form: "pattern" or "attention".
    """
    changed, notes = 0, []
    for site in sites:
        problem = site.problem or site.left_alone or _operand_problem(site, graphs)
        if problem:
            notes.append(f"{site.name}: left as it is: {problem}")
            continue
        rewriting = _Rewriting(graph, site, graphs, fed, form)
        problem = rewriting.problem()
        if problem and site.nodes[0].domain == capture_operator.DOMAIN:
            # What was captured whole is no operator of any file: the pattern can say it.
            notes.append(f"{site.name}: no Attention operator, since {problem}")
            rewriting = _Rewriting(graph, site, graphs, fed, "pattern")
            problem = rewriting.problem()
        if problem:
            notes.append(f"{site.name}: left as it is: {problem}")
            continue
        if rewriting.is_done():
            notes.append(f"{site.name}: already written so")
            continue
        rewriting.apply()
        changed += 1
        notes.append(f"{site.name}: {rewriting.in_words()}")
    return PassRecord(name=f"write_{form}", changed=changed, notes=tuple(notes))


def is_canonical_core(types: Sequence[str]) -> bool:
    """Whether nodes are products around masks and a softmax, no two Where of them in a row."""
    masks = list(types[1:-2])
    ends = [*types[:1], *types[-2:]]
    in_a_row = ("Where", "Where") in pairwise(masks)
    return (
        ends == ["MatMul", "Softmax", "MatMul"] and {*masks} <= {"Add", "Where"} and not in_a_row
    )


def _operand_problem(site: AttentionSite, graphs: Sequence[ConcreteGraph]) -> str:
    for which in OPERANDS:
        shape = graphs[0].shape(site.operand(which))
        known = which in site.layouts and columns_in_order(site.layouts[which]) is not None
        if shape is None:
            return f"the shape of the {which} is not known"
        if len(shape) != 4 and not known:
            return f"the {which} has {len(shape)} axes and no head axis could be told from it"
    return ""


class _Rewriting:
    """One attention, about to be written."""

    def __init__(
        self,
        graph: ir.Graph,
        site: AttentionSite,
        graphs: Sequence[ConcreteGraph],
        fed: Sequence[ConcreteGraph],
        form: Form,
    ) -> None:
        self.graph, self.site, self.graphs, self.form = graph, site, graphs, form
        self.direct = {w: tap for w, tap in find_taps(site, graphs).items() if tap.direct}
        self.guards = self._redundant_guards(fed)
        self.merged = merged_heads(site, self._context_after_guard(), graphs)
        self.writer = GraphWriter(graph, f"/{site.name}")
        dtype = site.query.dtype
        assert dtype is not None
        self.dtype = dtype
        self.value_dtype = graphs[0].dtype(site.value) or dtype

    def _redundant_guards(self, fed: Sequence[ConcreteGraph]) -> list[ir.Node]:
        """The guards that say no more than ours will: on the context, and after W_O."""
        found = guards_of(self.site, self.graphs)
        return [guard for guard in found if guard_is_redundant(self.site, guard, fed)]

    def _context_after_guard(self) -> ir.Value:
        guard = guard_on(self.site.context)
        return (
            guard.outputs[0] if guard is not None and guard in self.guards else self.site.context
        )

    def problem(self) -> str:
        if self.form == "attention" and self.is_done():
            return ""
        if self.form == "attention" and self.value_dtype != self.dtype:
            return "the operator wants queries, keys and values of one dtype"
        if self.merged is None and not self._context_has_heads():
            return "it could not be told how the heads of the context are put side by side"
        if self.form == "attention" and not operator_can_hide(self.site, self.dtype):
            return (
                "its mask sets hidden scores to a number, and the operator can only add to them: "
                "hide by -inf, or by False"
            )
        return ""

    def _context_has_heads(self) -> bool:
        shape = self.graphs[0].shape(self.site.context)
        return shape is not None and len(shape) == 4

    def is_done(self) -> bool:
        """Whether the graph already holds what would be written."""
        site = self.site
        if self.form == "attention":
            return site.source == "operator" and site.nodes[0].domain == ""
        types = [node.op_type for node in site.nodes if node.op_type != "Cast"]
        return (
            site.source == "pattern"
            and is_canonical_core(types)
            and site.scale == 1.0
            and site.chains["key"].scale == 1.0
            and all(map(is_canonical, self.direct.values()))
            and (self.merged is None or self.merged.is_canonical)
            and (
                not site.causal
                or bool(site.terms)
                or types == ["MatMul", "Add", "Softmax", "MatMul"]
            )
            and (bool(self.guards) or not site.dead_rows)
            and all(term.kind == "additive" or not term.inverted for term in site.terms)
        )

    def in_words(self) -> str:
        before = "the operator" if self.site.source == "operator" else "a pattern"
        operator = self.form == "attention"
        after = "the Attention operator" if operator else "the canonical pattern"
        return f"{before} of {len(self.site.nodes)} nodes became {after}"

    def apply(self) -> None:
        """Writes the attention and puts it in the old one's place."""
        site = self.site
        for guard in self.guards:
            kept = guard.inputs[1]
            assert kept is not None
            guard.outputs[0].replace_all_uses_with(kept, replace_graph_outputs=True)
            self.graph.remove(guard, safe=True)
        scale = site.scale
        operands = OperandWriter(self.writer, site, self.direct, self.graphs[0], self.form)
        written = []
        for which in OPERANDS:
            operand, factor = operands.write(which)
            written.append(operand)
            scale *= factor
        query, key, value = written
        key_axis = 3 if operands.keys_transposed else 2
        widened = site.masks_widened and self.form == "pattern"
        mask_dtype = self._softmax_dtype() if widened else self.dtype
        masks = MaskWriter(self.writer, site, query, key, key_axis, mask_dtype)
        write = self._operator if self.form == "attention" else self._pattern
        context = write(query, key, value, scale, masks)
        self._finish(context, masks)

    def _pattern(
        self, query: ir.Value, key: ir.Value, value: ir.Value, scale: float, masks: MaskWriter
    ) -> ir.Value:
        writer, wide = self.writer, self._softmax_dtype()
        if scale != 1.0:
            factor = writer.scalar(scale, self.dtype)
            query = writer.op("Mul", [query, factor], "query_scaled")
        scores = writer.op("MatMul", [query, key], "scores")
        if self.site.masks_widened:
            scores = masks.apply(self._cast(scores, self.dtype, wide, "scores_wide"))
        else:
            scores = self._cast(masks.apply(scores), self.dtype, wide, "scores_wide")
        weights = writer.op("Softmax", [scores], "softmax", {"axis": -1})
        weights = self._cast(weights, wide, self.value_dtype, "weights")
        return writer.op("MatMul", [weights, value], "context")

    def _softmax_dtype(self) -> ir.DataType:
        return self.site.softmax_dtype or self.dtype

    def _cast(
        self, value: ir.Value, given: ir.DataType, wanted: ir.DataType, name: str
    ) -> ir.Value:
        if given == wanted:
            return value
        return self.writer.op("Cast", [value], name, {"to": wanted.value})

    def _operator(
        self, query: ir.Value, key: ir.Value, value: ir.Value, scale: float, masks: MaskWriter
    ) -> ir.Value:
        site = self.site
        alone = site.causal and not site.terms
        mask = None if alone else masks.for_operator()
        if mask is not None:
            if site.masks_widened and any(term.kind == "additive" for term in site.terms):
                mask = self._cast(mask, self._softmax_dtype(), self.dtype, "mask_narrow")
            mask = self._expanded(mask, query, key)
        inputs = [query, key, value] if mask is None else [query, key, value, mask]
        attributes = {"scale": float(scale), "is_causal": int(alone)}
        return self.writer.op("Attention", inputs, "attention", attributes)

    def _expanded(self, mask: ir.Value, query: ir.Value, key: ir.Value) -> ir.Value:
        """ONNX Runtime 1.32 refuses a mask whose query dimension is 1 (legal ONNX): spell it out."""
        sizes = [
            self.writer.sizes(value, 2, 3, f"{name}_length")
            for name, value in (("query", query), ("key", key))
        ]
        shape = self.writer.op("Concat", sizes, "mask_shape", {"axis": 0})
        return self.writer.op("Expand", [mask, shape], "mask")

    def _finish(self, context: ir.Value, masks: MaskWriter) -> None:
        """Merges the heads, guards dead rows, and replaces what the old attention computed."""
        site = self.site
        anchor = site.nodes[-1]
        product = output_product(self.merged)
        flat = flat_output(self.merged, self.graphs, site)
        behind = flat.value if flat is not None else None
        behind = product.outputs[0] if product is not None else behind
        alive = masks.alive() if site.dead_rows else None
        after_output = alive is not None and behind is not None and self._mask_has_no_heads()
        if alive is not None and not after_output:
            zero = self.writer.scalar(0.0, self.value_dtype)
            context = self.writer.op("Where", [alive, context, zero], "context_alive")
        rows = self._rows_alive(alive) if alive is not None and after_output else None
        old, new = site.context, context
        if self.merged is not None and (self.merged.nodes or not self._context_has_heads()):
            old, new = self.merged.value, self._merge(context, self.merged)
        self.writer.insert_before(anchor)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if rows is not None and behind is not None:
            self._guard_after(behind, rows, flat.bias if flat is not None else None)

    def _merge(self, context: ir.Value, merged: MergedHeads) -> ir.Value:
        """(B,H,N,Dh) -> the rows of the layout, the heads side by side."""
        shape = self.graphs[0].shape(merged.value)
        assert shape is not None
        perm = [2, 0, 1, 3] if merged.sequence_first else [0, 2, 1, 3]
        turned = self.writer.op("Transpose", [context], "context_rows", {"perm": perm})
        sizes = [-1, shape[-1]] if merged.flat else [0, 0, shape[-1]]
        return self.writer.op("Reshape", [turned, self.writer.integers(sizes)], "context_merged")

    def _mask_has_no_heads(self) -> bool:
        shapes = [term.shape(self.graphs[0]) for term in self.site.terms]
        return all(s is not None and (len(s) < 3 or s[-3] == 1) for s in shapes)

    def _rows_alive(self, alive: ir.Value) -> ir.Value:
        """(B|1,1,N|1,1) -> (B|1,N|1,1) or, sequence-first, (N|1,B|1,1)."""
        rank = max(len(term.shape(self.graphs[0]) or ()) for term in self.site.terms)
        sequence_first = self.merged is not None and self.merged.sequence_first
        if rank == 4:
            alive = self.writer.squeeze(alive, [1], "rows_alive")
        elif sequence_first and rank < 3:
            return self.writer.unsqueeze(alive, [1], "rows_alive")
        if sequence_first:
            perm = {"perm": [1, 0, 2]}
            alive = self.writer.op("Transpose", [alive], "rows_alive_sequence_first", perm)
        return alive

    def _guard_after(self, output: ir.Value, rows: ir.Value, bias: ir.Value | None) -> None:
        """Where(row alive, ·W_O, 0) before the bias; behind it Where(row alive, ·W_O + b, b)."""
        uses = list(output.uses())
        hidden = self.writer.scalar(0.0, self.value_dtype) if bias is None else bias
        guarded = self.writer.op("Where", [rows, output, hidden], "output_alive")
        for use in uses:
            use.node.replace_input_with(use.idx, guarded)
        for index, value in enumerate(self.graph.outputs):
            if value is output:
                self.graph.outputs[index] = guarded
        self.writer.append()  # the graph is sorted when all attentions are written
