"""Writes the canonical way from a projection to heads, and recognises it.

batch-first      (B,N,E) -> Reshape (B,N,H,Dh) -> Transpose (B,H,N,Dh), or (B,H,Dh,N) for keys
sequence-first   (N,B,E) -> Reshape (N,B,H,Dh) -> Transpose (B,H,N,Dh), likewise
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.movement import HeadLayout, SourceLayout
from attnport.export.taps import Tap

# (transposed, layout) -> the permutation of (B,N,H,Dh), or of (N,B,H,Dh).
_PERMUTATIONS: dict[tuple[bool, SourceLayout], list[int]] = {
    (False, "batch-first"): [0, 2, 1, 3],
    (True, "batch-first"): [0, 2, 3, 1],
    (False, "sequence-first"): [1, 2, 0, 3],
    (True, "sequence-first"): [1, 2, 3, 0],
}
_CANONICAL = (["Reshape", "Transpose"], ["Split", "Reshape", "Transpose"])
_PACKED = ["Reshape", "Transpose", "Split"]


def write_heads(
    writer: GraphWriter,
    source: ir.Value,
    layout: SourceLayout,
    shape: tuple[int, ...],
    name: str,
    *,
    transposed: bool = False,
) -> ir.Value:
    """(B,N,E) or (N,B,E) -> (B,H,N,Dh), or (B,H,Dh,N) where `transposed`; shape is (H,Dh)."""
    sizes = writer.integers([0, 0, *shape])
    reshaped = writer.op("Reshape", [source, sizes], f"{name}_reshape")
    permutation = _PERMUTATIONS[transposed, layout]
    return writer.op("Transpose", [reshaped], f"{name}_heads", {"perm": permutation})


def repeat_heads(writer: GraphWriter, value: ir.Value, index: np.ndarray, name: str) -> ir.Value:
    """Repeats key/value heads for grouped queries: head h is head index[h] of the value."""
    if np.array_equal(index, np.arange(len(index))):
        return value
    return writer.op(
        "Gather", [value, writer.integers(index.tolist())], f"{name}_repeat", {"axis": 1}
    )


def columns_in_order(layout: HeadLayout) -> int | None:
    """The first column, if the heads are one block of the source in the order (h,d)."""
    distinct, _ = layout.distinct_heads()
    flat = distinct.ravel()
    in_order = np.array_equal(flat, flat[0] + np.arange(flat.size))
    return int(flat[0]) if in_order else None


def is_canonical(tap: Tap) -> bool:
    """Whether the value's heads already stand as this module writes them."""
    types = _types(tap)
    if tap.rows:
        return types in ([], ["Split"])
    packed = [*_PACKED, "Transpose"] if tap.transposed else _PACKED
    return types in _CANONICAL or types == packed


def packed_heads(tap: Tap) -> ir.Value | None:
    """The output of a canonical Split of packed heads, (B,H,N,Dh), if the value is one."""
    if not is_canonical(tap) or _types(tap)[:3] != _PACKED:
        return None
    nodes = tap.chain.nodes
    split = next(node for node in nodes if node.op_type == "Split")
    used = {value for node in nodes for value in node.inputs} | {tap.chain.end}
    return next(output for output in split.outputs if output in used)


def _types(tap: Tap) -> list[str]:
    types = [node.op_type for node in tap.chain.nodes if node.op_type != "Mul"]
    if types and types[-1] == "Gather":
        types.pop()
    return types
