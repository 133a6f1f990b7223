"""Writes causality, masks and the guard for dead rows in their canonical form.

    causal alone           Add(scores, Where(i >= j, 0, -inf)), bounded by TensorRT's kernel
    what is added          Add(scores, bias)
    what hides             one And of all, then Where(visible, scores, -inf)
    a number that hides    as the graph has it, in its order: beside other masks it is arithmetic
    several numbers        one Where, whose last operand says which of them stands where
    a row may be dead      Where(any key visible, ., 0) on the rows after ·W_O, before its bias

Two Where in a row on the scores end TensorRT for RTX 1.7's builder with a segmentation fault, and a
guard on the probabilities destroys its fusion: hence one Where, and the guard on rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import ml_dtypes
import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.mask_terms import can_be_minus_infinity
from attnport.export.sites import AttentionSite, MaskTerm


def hides_by_a_number(site: AttentionSite) -> bool:
    """Whether a mask sets hidden scores to a finite number."""
    return any(term.kind == "bool" and math.isfinite(term.fill) for term in site.terms)


def operator_can_hide(site: AttentionSite, dtype: ir.DataType) -> bool:
    """Whether what hides by a number can be added: one mask, and so low that no score is felt."""
    if not hides_by_a_number(site):
        return True
    lowest = float(ml_dtypes.finfo(dtype.numpy()).min)
    runs = _runs(site.terms)
    return not site.causal and len(runs) == 1 and runs[0][0].fill <= max(lowest, -1e30)


def _runs(terms: Sequence[MaskTerm]) -> list[list[MaskTerm]]:
    """The terms in their order; those in a row that hide by the same number are one mask."""
    runs: list[list[MaskTerm]] = []
    for term in terms:
        last = runs[-1][-1] if runs else None
        if last is not None and term.kind == last.kind == "bool" and term.fill == last.fill:
            runs[-1].append(term)
        else:
            runs.append([term])
    return runs


class MaskWriter:
    """Writes the masks of one site.

    Args:
        writer: Where the nodes go.
        site: The attention.
        query: (B,H,N,Dh), whose size N causality takes.
        key: (B,H,T,Dh) or, where `site.key_transposed`, (B,H,Dh,T).
        dtype: Of the scores.
    """

    def __init__(
        self,
        writer: GraphWriter,
        site: AttentionSite,
        query: ir.Value,
        key: ir.Value,
        key_axis: int,
        dtype: ir.DataType,
    ) -> None:
        self._writer = writer
        self._site = site
        self._query, self._key, self._key_axis = query, key, key_axis
        self._dtype = dtype
        self._visible_mask: ir.Value | None = None
        self._causal: ir.Value | None = None

    def apply(self, scores: ir.Value) -> ir.Value:
        """Scores with everything that hides or shifts them."""
        site, writer = self._site, self._writer
        if site.causal and not site.terms:
            return writer.op("Add", [scores, self.causal_bias()], "masked")
        if hides_by_a_number(site):
            return self._in_order(scores)
        for term in site.terms:
            if term.kind == "additive":
                scores = writer.op("Add", [scores, term.value], "biased")
        visible = self.visible()
        return scores if visible is None else self._where(visible, scores, -math.inf)

    def _in_order(self, scores: ir.Value) -> ir.Value:
        """Each mask after the other, those that hide in a row as one."""
        for kind, group in itertools.groupby(self._site.terms, lambda term: term.kind):
            terms = list(group)
            if kind == "bool":
                scores = self._hidden_in_a_row(scores, terms)
                continue
            for term in terms:
                scores = self._writer.op("Add", [scores, term.value], "biased")
        return scores

    def _hidden_in_a_row(self, scores: ir.Value, terms: Sequence[MaskTerm]) -> ir.Value:
        """What the last mask that hides a score sets it to; of a single number, one Where.

        -inf beside a number is added instead, as it can be: what is hidden by both is the number
        where that comes last, and -inf where not.
        """
        runs = _runs(terms)
        numbers = [run for run in runs if run[0].fill != -math.inf]
        if len(numbers) > 1:
            return self._hidden_by_several(scores, runs)
        for run in runs:
            visible, fill = self._all_visible(run), run[0].fill
            if len(runs) == 1 or fill != -math.inf:
                scores = self._where(visible, scores, fill)
            else:
                zero = self._writer.scalar(0.0, self._dtype)
                bias = self._where(visible, zero, fill)
                scores = self._writer.op("Add", [scores, bias], "biased")
        return scores

    def _hidden_by_several(self, scores: ir.Value, runs: Sequence[Sequence[MaskTerm]]) -> ir.Value:
        """Where(visible by all, scores, Where(visible by the last, first number, last number))."""
        masks = [self._all_visible(run) for run in runs]
        fill = self._writer.scalar(runs[0][0].fill, self._dtype)
        visible = masks[0]
        for run, mask in zip(runs[1:], masks[1:], strict=True):
            number = self._writer.scalar(run[0].fill, self._dtype)
            fill = self._writer.op("Where", [mask, fill, number], "fill")
            visible = self._writer.op("And", [visible, mask], "visible")
        return self._writer.op("Where", [visible, scores, fill], "masked")

    def _all_visible(self, terms: Sequence[MaskTerm]) -> ir.Value:
        visible = self._visible(terms[0])
        for term in terms[1:]:
            visible = self._writer.op("And", [visible, self._visible(term)], "visible")
        return visible

    def _where(self, visible: ir.Value, scores: ir.Value, fill: float) -> ir.Value:
        hidden = self._writer.scalar(fill, self._dtype)
        return self._writer.op("Where", [visible, scores, hidden], "masked")

    def visible(self) -> ir.Value | None:
        """One bool mask of all that hides by -inf; None where nothing does."""
        if self._visible_mask is None:
            self._visible_mask = self._write_visible()
        return self._visible_mask

    def _write_visible(self) -> ir.Value | None:
        parts = [
            self._visible(term)
            for term in self._site.terms
            if term.kind == "bool" and term.fill == -math.inf
        ]
        if self._site.causal and self._site.terms:
            parts.append(self.causal_visible())
        if not parts:
            return None
        visible = parts[0]
        for part in parts[1:]:
            visible = self._writer.op("And", [visible, part], "visible")
        return visible

    def _visible(self, term: MaskTerm) -> ir.Value:
        value, inverted = term.value, term.inverted
        if value.dtype is not None and value.dtype != ir.DataType.BOOL:  # a number, 0 or not
            zero = self._writer.scalar(0.0, value.dtype)
            value, inverted = self._writer.op("Equal", [value, zero], "is_zero"), not inverted
        if inverted:
            value = self._writer.op("Not", [value], "visible")
        if term.axes:
            value = self._writer.unsqueeze(value, term.axes, "mask")
        return value

    def causal_visible(self) -> ir.Value:
        """(N,T): whether key j is at or before query i.

        Counted in int32: TensorRT for RTX 1.7.1 takes an int64 Range for the one that the model
        counts its positions by, and then writes the mask by a kernel of its own, so that the
        attention kernel no longer knows that it is causal (two layers of GPT-2: 18 kernels and
        bounded, else 25 and masked; Llama 20, else 27).
        """
        writer = self._writer
        rows = self._counted(writer.size(self._query, 2, "queries"), "rows")
        columns = self._counted(writer.size(self._key, self._key_axis, "keys"), "columns")
        column_of_rows = writer.unsqueeze(rows, [1], "rows_column")
        return writer.greater_or_equal(column_of_rows, columns, "causal")

    def _counted(self, size: ir.Value, name: str) -> ir.Value:
        """0, 1, … below a size."""
        whole = ir.DataType.INT32
        zero, one = (self._writer.scalar(n, whole) for n in (0, 1))
        end = self._writer.op("Cast", [size], f"{name}_end", {"to": whole.value})
        return self._writer.op("Range", [zero, end, one], name)

    def causal_bias(self) -> ir.Value:
        """(N,T): 0 where key j is at or before query i, else -inf."""
        zero, hidden = (self._writer.scalar(n, self._dtype) for n in (0.0, -math.inf))
        return self._writer.op("Where", [self.causal_visible(), zero, hidden], "causal_bias")

    def combined(self) -> ir.Value | None:
        """One mask for everything: bool, or additive where anything is added."""
        added = [term.value for term in self._site.terms if term.kind == "additive"]
        visible = self.visible()
        if not added:
            return visible
        total = added[0]
        for value in added[1:]:
            total = self._writer.op("Add", [total, value], "bias")
        if visible is None:
            return total
        hidden = self._writer.scalar(-math.inf, self._dtype)
        return self._writer.op("Where", [visible, total, hidden], "bias")

    def for_operator(self) -> ir.Value | None:
        """The operator's mask; no number in it is so low that ONNX Runtime takes it for -inf.

        Its Attention (1.32) gives 0 for a row in which every number is the lowest of the dtype,
        where PyTorch gives the mean of all values; half of that number hides as well.
        """
        site, lowest = self._site, float(ml_dtypes.finfo(self._dtype.numpy()).min)
        if hides_by_a_number(site):
            (run,) = _runs(site.terms)
            zero = self._writer.scalar(0.0, self._dtype)
            return self._where(self._all_visible(run), zero, max(run[0].fill, lowest / 2))
        mask = self.combined()
        added = [term for term in site.terms if term.kind == "additive"]
        if mask is None or not added:
            return mask
        least = self._writer.scalar(lowest / 2, self._dtype)
        raised = self._writer.op("Max", [mask, least], "bias_raised")
        if self.visible() is None and not any(can_be_minus_infinity(t.value) for t in added):
            return raised
        hidden = self._writer.scalar(-math.inf, self._dtype)
        dead = self._writer.op("Equal", [mask, hidden], "bias_hides")
        return self._writer.op("Where", [dead, hidden, raised], "bias")

    def alive(self) -> ir.Value:
        """(…,N|1,1) bool: whether the query has a visible key."""
        if hides_by_a_number(self._site):
            bias = self._in_order(self._writer.scalar(0.0, self._dtype))
            return self._any(bias, -math.inf, "bias")
        mask = self.combined()
        assert mask is not None
        if any(term.kind == "additive" for term in self._site.terms):
            return self._any(mask, -math.inf, "bias")
        number = self._writer.op("Cast", [mask], "visible_number", {"to": self._dtype.value})
        return self._any(number, 0.0, "visible")

    def _any(self, value: ir.Value, threshold: float, name: str) -> ir.Value:
        """Whether the largest along the keys is above a number."""
        largest = self._writer.reduce_max(value, [-1], f"{name}_any")
        return self._writer.op(
            "Greater", [largest, self._writer.scalar(threshold, self._dtype)], "alive"
        )
