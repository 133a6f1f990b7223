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
_MOVED_ON: tuple[list[str], ...] = ([], ["Transpose"], ["Reshape"], ["Transpose", "Reshape"])


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
    """Whether the value's heads stand as this module writes them, with nothing behind."""
    types = _types(tap)
    if tap.rows:
        return types in ([], ["Split"])
    return _behind_heads(tap) == [] or (
        _is_packed(types) and tap.transposed and types[3:] == ["Transpose"]
    )


def is_split(tap: Tap, *, packed: bool) -> bool:
    """Whether the heads are split off in the given way, whatever moves them afterwards.

    Operands of three axes are made of four by another Reshape, until attention is written anew.
    """
    if tap.rows:
        return _types(tap) in ([], ["Split"])
    behind = _behind_heads(tap)
    return behind in _MOVED_ON and _is_packed(_types(tap)) == packed


def packed_heads(tap: Tap) -> ir.Value | None:
    """The output of a canonical Split of packed heads, (B,H,N,Dh), if the value is one."""
    if not _is_packed(_types(tap)) or _behind_heads(tap) is None:
        return None
    nodes = tap.chain.nodes
    split = next(node for node in nodes if node.op_type == "Split")
    used = {value for node in nodes for value in node.inputs} | {tap.chain.end}
    return next(output for output in split.outputs if output in used)


def _is_packed(types: list[str]) -> bool:
    return types[:3] == _PACKED


def _behind_heads(tap: Tap) -> list[str] | None:
    """What moves the heads after they were made canonically; None where they were not."""
    reshape = next((node for node in tap.chain.nodes if node.op_type == "Reshape"), None)
    shape = reshape.inputs[1] if reshape is not None else None
    if shape is None or shape.const_value is None or shape.const_value.numpy()[:2].any():
        return None  # sizes of the example, or computed: not [0,0,H,Dh]
    types = _types(tap)
    known = next((form for form in (*_CANONICAL, _PACKED) if types[: len(form)] == form), None)
    if _is_packed(types):
        known = _PACKED
    return types[len(known) :] if known is not None else None


def _types(tap: Tap) -> list[str]:
    types = [node.op_type for node in tap.chain.nodes if node.op_type != "Mul"]
    if types and types[-1] == "Gather":
        types.pop()
    return types
