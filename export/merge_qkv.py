"""Pass: the projections of one attention that share their input become one matrix.

Requires: sites found, with the layout of their heads.
Ensures: one MatMul and a Split for each group that can be merged; the same numbers, since each
column of a product depends on its own column of the matrix alone.

Where the Split stands was chosen by counting the kernels of TensorRT for RTX 1.7 (fp16, D=512, H=8):

    query, key and value without bias   of the columns        4 pre-LN blocks: 19 kernels, else 22
    the same with bias                  of the packed heads   4 pre-LN blocks: 22 kernels, else 30
    key and value (cross-attention)     of the packed heads   1 attention:      7 kernels, else 8
    rotary positions, norms of q and k  of the packed heads   4 pre-LN blocks: 22 kernels, else 26
    grouped queries (heads repeated)    of the packed heads   4 pre-LN blocks: 22 kernels, else 24
    cache that grows (Concat)           of the packed heads   4 pre-LN blocks: 22 and 18 kernels
                                                              (prefill and one token), else 27 and 18
    cache written in place              of the columns        the same: 30 and 22, else 30 and 34;
    (TensorScatter)                                           with grouped queries 34 and 34, else
                                                              30 and 34: of the packed heads
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.heads import is_split, repeat_heads, write_heads
from attnport.export.projections import Group, Projection, find_groups
from attnport.export.records import PassRecord
from attnport.export.sites import AttentionSite, Operand
from attnport.export.taps import Tap

# What an operand's axes are: (B,H,N,Dh); (B,N,H·Dh), as the operator also takes it; (B·H,N,Dh).
Axes = Literal["heads", "columns", "batch"]


def merge_qkv(
    graph: ir.Graph, sites: Sequence[AttentionSite], graphs: Sequence[ConcreteGraph]
) -> PassRecord:
    """Merges every group that can be; the record says of the others why not."""
    changed, notes = 0, []
    for group in find_groups(sites, graphs):
        name = f"{group.site.name}/{group.kind}"
        if group.problem:
            notes.append(f"{name}: left alone: {group.problem}")
        elif _is_done(group):
            notes.append(f"{name}: already one product")
        else:
            note = _in_words(group)
            _merge(graph, group, graphs[0])
            changed += 1
            notes.append(f"{name}: {note}")
    return PassRecord(name="merge_qkv", changed=changed, notes=tuple(notes))


def _is_done(group: Group) -> bool:
    """Whether one product holds the group, and its heads are split as they would be."""
    taps = [group.taps[which] for which in group.members]
    packed = _packs_heads(group, taps)
    return group.in_order and all(is_split(tap, packed=packed) for tap in taps)


def _in_words(group: Group) -> str:
    if group.in_order:
        return "already one product; its heads are split in the canonical way"
    if group.merged:
        return "already one product; its columns are put in the order of queries, keys and values"
    before = len({projection.product for projection in group.members.values()})
    return f"{before} products of {len(group.members)} projections became one MatMul"


def _merge(graph: ir.Graph, group: Group, concrete: ConcreteGraph) -> None:
    first = _first_consumer(graph, group)
    writer = GraphWriter(graph, f"/{group.site.name}")
    packed = _packed(writer, group)
    taps = [group.taps[which] for which in group.members]
    write = _split_heads if _packs_heads(group, taps) else _split_columns
    for which, part in zip(group.members, write(writer, group, packed), strict=True):
        shape = concrete.shape(group.taps[which].chain.end)
        by_operator = group.site.source == "operator"
        flatten = shape is not None and len(shape) == 3 and not group.taps[which].rows
        _replace(
            writer,
            group.taps[which],
            which,
            part,
            axes="heads" if not flatten else "columns" if by_operator else "batch",
        )
    writer.insert_before(first)


def _packs_heads(group: Group, taps: Sequence[Tap]) -> bool:
    """Whether the heads are transposed before the Split: see the table above."""
    if any(tap.rows for tap in taps) or len({tap.layout.head_size for tap in taps}) > 1:
        return False
    biased = any(projection.bias is not None for projection in group.members.values())
    repeated = any(len(tap.layout.distinct_heads()[0]) < tap.layout.heads for tap in taps)
    if len(taps) == 3 and any(map(_is_written_in_place, taps)):
        alike = len({tap.layout.heads for tap in taps}) == 1
        between = [tap for tap in taps if not (tap.direct or _is_written_in_place(tap))]
        return biased or not alike or bool(between)
    return biased or repeated or len(taps) == 2 or not all(tap.direct for tap in taps)


def _is_written_in_place(tap: Tap) -> bool:
    """Whether the heads are the new rows of a static cache."""
    return any(use.node.op_type == "TensorScatter" for use in tap.chain.end.uses())


def _packed(writer: GraphWriter, group: Group) -> ir.Value:
    """X·W_QKV + b_QKV, (B,N,Eq+Ek+Ev); where it stands already, as it is."""
    if group.in_order:
        return next(iter(group.members.values())).output
    pairs = [(p, group.taps[which]) for which, p in group.members.items()]
    columns = [p.columns(tap) for p, tap in pairs]
    shape = (columns[0].shape[0], sum(part.shape[1] for part in columns))
    weight = np.concatenate(columns, axis=1, out=np.empty(shape, columns[0].dtype))
    constant = writer.weight(weight, f"{group.kind}_weight")
    product = writer.op("MatMul", [pairs[0][0].x, constant], group.kind)
    bias = _merged_bias(pairs)
    if bias is None:
        return product
    return writer.op(
        "Add", [product, writer.weight(bias, f"{group.kind}_bias")], f"{group.kind}_biased"
    )


def _first_consumer(graph: ir.Graph, group: Group) -> ir.Node:
    """The earliest node of the graph that uses one of the values that are replaced."""
    ends = [group.taps[which].chain.end for which in group.members]
    users = {use.node for end in ends for use in end.uses()}
    return next(node for node in graph if node in users)


def _merged_bias(pairs: Sequence[tuple[Projection, Tap]]) -> np.ndarray | None:
    """The biases in a row, zeros for a projection without one; None where none has one."""
    columns = [projection.bias_columns(tap) for projection, tap in pairs]
    given = next((bias for bias in columns if bias is not None), None)
    if given is None:
        return None
    sizes = [projection.picked(tap).size for projection, tap in pairs]
    return np.concatenate(
        [
            bias if bias is not None else np.zeros(size, given.dtype)
            for bias, size in zip(columns, sizes, strict=True)
        ]
    )


def _split_columns(writer: GraphWriter, group: Group, packed: ir.Value) -> list[ir.Value]:
    """(B,N,Eq+Ek+Ev) -> a Split of the columns -> heads of each, where a tap is heads."""
    parts = writer.split(packed, group.sizes, -1, f"{group.kind}_split")
    layout = group.order
    written = []
    for which, part in zip(group.members, parts, strict=True):
        tap = group.taps[which]
        shape = tap.layout.distinct_heads()[0].shape
        turned = tap.transposed
        written.append(
            part
            if tap.rows
            else write_heads(writer, part, layout, shape, which, transposed=turned)
        )
    return written


def _split_heads(writer: GraphWriter, group: Group, packed: ir.Value) -> list[ir.Value]:
    """(B,N,(H+2Hkv)·Dh) -> one transposition to (B,H+2Hkv,N,Dh) -> a Split of the heads."""
    layouts = [group.taps[which].layout for which in group.members]
    counts = [len(layout.distinct_heads()[0]) for layout in layouts]
    shape = (sum(counts), layouts[0].head_size)
    order = group.order
    heads = write_heads(writer, packed, order, shape, group.kind)
    parts = writer.split(heads, counts, 1, f"{group.kind}_split")
    return [
        writer.op("Transpose", [part], f"{which}_transposed", {"perm": [0, 1, 3, 2]})
        if group.taps[which].transposed
        else part
        for which, part in zip(group.members, parts, strict=True)
    ]


def _replace(writer: GraphWriter, tap: Tap, which: Operand, part: ir.Value, axes: Axes) -> None:
    """Puts the new value in the place of the tap, for all who use it."""
    end = tap.chain.end
    if not tap.rows:
        part = repeat_heads(writer, part, tap.layout.distinct_heads()[1], which)
        part = _in_three_axes(writer, part, which, axes)
    if tap.chain.scale != 1.0:
        assert end.dtype is not None
        factor = writer.scalar(tap.chain.scale, end.dtype)
        part = writer.op("Mul", [part, factor], f"{which}_scaled")
    end.replace_all_uses_with(part, replace_graph_outputs=True)


def _in_three_axes(writer: GraphWriter, heads: ir.Value, which: Operand, axes: Axes) -> ir.Value:
    """(B,H,N,Dh) as the old attention takes it, until it is written anew itself."""
    if axes == "columns":
        rows = writer.op("Transpose", [heads], f"{which}_rows", {"perm": [0, 2, 1, 3]})
        return writer.op("Reshape", [rows, writer.integers([0, 0, -1])], f"{which}_columns")
    if axes == "batch":
        last = writer.sizes(heads, 2, 4, f"{which}_last")
        sizes = writer.op("Concat", [writer.integers([-1]), last], f"{which}_sizes", {"axis": 0})
        return writer.op("Reshape", [heads, sizes], f"{which}_batch")
    return heads
