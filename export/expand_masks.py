"""The masks that stand for a past, key lengths and a window of the Attention operator.

Letters as in `records`; P past tokens, T = P + new tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter


class ExpandedMasks:
    """Writes the masks of one operator.

    Args:
        writer: Where the nodes go.
        query: (B,H,N,Dh).
        key: (B,Hkv,T,Dh), with the past.
        past: (B,Hkv,P,Dh), or None.
        lengths: (B,), how many keys of each sequence are no padding, or None.
    """

    def __init__(
        self,
        writer: GraphWriter,
        query: ir.Value,
        key: ir.Value,
        past: ir.Value | None,
        lengths: ir.Value | None,
    ) -> None:
        self._writer, self._query, self._key, self._past = writer, query, key, past
        whole = {"to": ir.DataType.INT64.value}
        self._lengths = None if lengths is None else writer.op("Cast", [lengths], "lengths", whole)

    def visible(self, *, causal: bool, window: Sequence[int]) -> ir.Value | None:
        """What hides keys, broadcast to (B,1,N,T) and True where they are seen; None if nothing.

        Args:
            causal: Whether to hide the keys after a query.
            window: How far a query sees to the left and to the right; -1 without a limit.
        """
        left, right = window
        bounds = [("LessOrEqual", 0)] if causal else []
        bounds += [("LessOrEqual", right)] if right >= 0 else []
        bounds += [("GreaterOrEqual", -left)] if left >= 0 else []
        if self._lengths is None and not bounds:
            return None
        writer, parts = self._writer, []
        keys = self._range(writer.size(self._key, 2, "keys"), "columns")
        if self._lengths is not None:
            limit = writer.unsqueeze(self._lengths, [1, 2, 3], "lengths_of_batch")
            parts.append(writer.op("Less", [keys, limit], "not_padding", dtype=ir.DataType.BOOL))
        distance = writer.op("Sub", [keys, self._positions()], "distances") if bounds else keys
        for op, bound in bounds:
            limit = writer.scalar(bound, ir.DataType.INT64)
            parts.append(writer.op(op, [distance, limit], "in_reach", dtype=ir.DataType.BOOL))
        return self._all(parts)

    def combined(self, given: ir.Value | None, visible: ir.Value | None) -> ir.Value | None:
        """One mask of the one that was given, bool or additive, and what is visible."""
        if given is None or visible is None:
            return given if visible is None else visible
        if given.dtype == ir.DataType.BOOL:
            return self._all([given, visible])
        dtype = self._query.dtype
        assert dtype is not None
        hidden = self._writer.scalar(-math.inf, dtype)
        return self._writer.op("Where", [visible, given, hidden], "bias", dtype=dtype)

    def padded(self, mask: ir.Value, rank: int) -> ir.Value:
        """A mask that ends before the keys, with those that it does not reach hidden."""
        writer = self._writer
        lengths = [
            writer.sizes(self._key, 2, 3, "keys_all"),
            writer.sizes(mask, rank - 1, rank, "keys_said"),
        ]
        missing = writer.op("Sub", lengths, "keys_missing")
        before = writer.integers([0] * (2 * rank - 1))
        pads = writer.op("Concat", [before, missing], "mask_pads", {"axis": 0})
        dtype = mask.dtype or ir.DataType.FLOAT
        hidden = writer.scalar(0.0 if dtype == ir.DataType.BOOL else -math.inf, dtype)
        return writer.op("Pad", [mask, pads, hidden], "mask_padded", dtype=dtype)

    def spelled_out(self, mask: ir.Value) -> ir.Value:
        """ONNX Runtime 1.32 refuses a mask whose query dimension is 1 (legal ONNX)."""
        sizes = [
            self._writer.sizes(value, 2, 3, "mask_size") for value in (self._query, self._key)
        ]
        shape = self._writer.op("Concat", sizes, "mask_shape", {"axis": 0})
        return self._writer.op("Expand", [mask, shape], "mask", dtype=mask.dtype)

    def _all(self, parts: Sequence[ir.Value]) -> ir.Value:
        visible = parts[0]
        for part in parts[1:]:
            visible = self._writer.op("And", [visible, part], "visible", dtype=ir.DataType.BOOL)
        return visible

    def _range(self, count: ir.Value, name: str) -> ir.Value:
        zero, one = (self._writer.scalar(n, ir.DataType.INT64) for n in (0, 1))
        return self._writer.op("Range", [zero, count, one], name)

    def _positions(self) -> ir.Value:
        """(N,1), or (B,1,N,1) with lengths: where among the keys each query stands."""
        writer = self._writer
        count = writer.size(self._query, 2, "queries")
        rows = writer.unsqueeze(self._range(count, "rows"), [1], "rows_column")
        if self._past is not None:
            return writer.op("Add", [rows, writer.size(self._past, 2, "past")], "positions")
        if self._lengths is not None:
            offset = writer.op("Sub", [self._lengths, count], "offsets")
            of_batch = writer.unsqueeze(offset, [1, 2, 3], "offsets_of_batch")
            return writer.op("Add", [rows, of_batch], "positions")
        return rows
