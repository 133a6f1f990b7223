"""Pass: the projections of one attention that share their input become one matrix.

Requires: sites found, with the layout of their heads.
Ensures: one MatMul and a Split for each group that can be merged; the same numbers, since each
column of a product depends on its own column of the matrix alone.

Where the Split stands was chosen by counting the kernels of TensorRT for RTX 1.7 (fp16, D=512, H=8):

    query, key and value without bias   of the columns        4 pre-LN blocks: 19 kernels, else 22
    the same with bias                  of the packed heads   4 pre-LN blocks: 22 kernels, else 30
    key and value (cross-attention)     of the packed heads   1 attention:      7 kernels, else 8
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.heads import is_canonical, repeat_heads, write_heads
from attnport.export.movement import HeadLayout
from attnport.export.projections import Group, Projection, find_groups
from attnport.export.records import PassRecord
from attnport.export.sites import AttentionSite, Operand


def merge_qkv(
    graph: ir.Graph, sites: Sequence[AttentionSite], graphs: Sequence[ConcreteGraph]
) -> PassRecord:
    """Merges every group that can be; the record says of the others why not."""
    changed, notes = 0, []
    for group in find_groups(sites, graphs):
        name = f"{group.site.name}/{group.kind}"
        if group.problem:
            notes.append(f"{name}: left alone: {group.problem}")
        elif in_order(group) and all(is_canonical(group.site, which) for which in group.members):
            notes.append(f"{name}: already one product")
        else:
            note = _in_words(group)
            _merge(graph, group)
            changed += 1
            notes.append(f"{name}: {note}")
    return PassRecord(name="merge_qkv", changed=changed, notes=tuple(notes))


def in_order(group: Group) -> bool:
    """Whether one product holds exactly the group's columns, in the order of the group."""
    if not group.merged:
        return False
    layouts = [group.site.layouts[which].distinct_heads()[0].ravel() for which in group.members]
    columns = np.concatenate(layouts)
    projection = next(iter(group.members.values()))
    tensor = projection.weight.const_value
    assert tensor is not None
    width = tensor.numpy().shape[0 if projection.transposed else 1]
    return np.array_equal(columns, np.arange(width)) and projection.product.op_type == "MatMul"


def _in_words(group: Group) -> str:
    if in_order(group):
        return "already one product; its heads are split in the canonical way"
    before = len({projection.product for projection in group.members.values()})
    return f"{before} products of {len(group.members)} projections became one MatMul"


def _merge(graph: ir.Graph, group: Group) -> None:
    first = _first_consumer(graph, group)
    writer = GraphWriter(graph, f"/{group.site.name}")
    packed = _packed(writer, group)
    biased = any(projection.bias is not None for projection in group.members.values())
    sizes = {group.site.layouts[which].head_size for which in group.members}
    pack = (biased or len(group.members) == 2) and len(sizes) == 1
    write = _split_heads if pack else _split_columns
    for which, heads in zip(group.members, write(writer, group, packed), strict=True):
        _replace_operand(writer, group.site, which, heads)
    writer.insert_before(first)


def _packed(writer: GraphWriter, group: Group) -> ir.Value:
    """X·W_QKV + b_QKV, (B,N,Eq+Ek+Ev); where it stands already, as it is."""
    if in_order(group):
        return next(iter(group.members.values())).output
    pairs = [(p, group.site.layouts[which]) for which, p in group.members.items()]
    weight = np.concatenate([p.columns(layout) for p, layout in pairs], axis=1)
    constant = writer.weight(weight, f"{group.kind}_weight")
    product = writer.op("MatMul", [pairs[0][0].x, constant], group.kind)
    bias = _merged_bias(pairs)
    if bias is None:
        return product
    return writer.op(
        "Add", [product, writer.weight(bias, f"{group.kind}_bias")], f"{group.kind}_biased"
    )


def _first_consumer(graph: ir.Graph, group: Group) -> ir.Node:
    """The earliest node of the graph that uses one of the operands that are replaced."""
    ends = [group.site.chains[which].end for which in group.members]
    users = {use.node for end in ends for use in end.uses()}
    return next(node for node in graph if node in users)


def _merged_bias(pairs: Sequence[tuple[Projection, HeadLayout]]) -> np.ndarray | None:
    """The biases in a row, zeros for a projection without one; None where none has one."""
    columns = [projection.bias_columns(layout) for projection, layout in pairs]
    given = next((bias for bias in columns if bias is not None), None)
    if given is None:
        return None
    sizes = [layout.distinct_heads()[0].size for _, layout in pairs]
    return np.concatenate(
        [
            bias if bias is not None else np.zeros(size, given.dtype)
            for bias, size in zip(columns, sizes, strict=True)
        ]
    )


def _split_columns(writer: GraphWriter, group: Group, packed: ir.Value) -> list[ir.Value]:
    """(B,N,Eq+Ek+Ev) -> a Split of the columns -> heads of each."""
    site = group.site
    shapes = [site.layouts[which].distinct_heads()[0].shape for which in group.members]
    sizes = [heads * size for heads, size in shapes]
    parts = writer.split(packed, sizes, -1, f"{group.kind}_split")
    layout = next(iter(group.members.values())).layout
    return [
        write_heads(
            writer, part, layout, shape, which,
            transposed=which == "key" and site.key_transposed,
        )
        for which, part, shape in zip(group.members, parts, shapes, strict=True)
    ]  # fmt: skip


def _split_heads(writer: GraphWriter, group: Group, packed: ir.Value) -> list[ir.Value]:
    """(B,N,(H+2Hkv)·Dh) -> one transposition to (B,H+2Hkv,N,Dh) -> a Split of the heads."""
    site, kind = group.site, group.kind
    counts = [len(site.layouts[which].distinct_heads()[0]) for which in group.members]
    head_size = next(iter(site.layouts.values())).head_size
    layout = next(iter(group.members.values())).layout
    heads = write_heads(writer, packed, layout, (sum(counts), head_size), kind)
    parts = writer.split(heads, counts, 1, f"{kind}_split")
    return [
        writer.op("Transpose", [part], f"{which}_transposed", {"perm": [0, 1, 3, 2]})
        if which == "key" and site.key_transposed
        else part
        for which, part in zip(group.members, parts, strict=True)
    ]


def _replace_operand(
    writer: GraphWriter, site: AttentionSite, which: Operand, heads: ir.Value
) -> None:
    """Puts the new heads in the place of the old operand, for all who use it."""
    chain = site.chains[which]
    index = site.layouts[which].distinct_heads()[1]
    operand = repeat_heads(writer, heads, index, which)
    if chain.scale != 1.0:
        dtype = chain.end.dtype
        assert dtype is not None
        operand = writer.op("Mul", [operand, writer.scalar(chain.scale, dtype)], f"{which}_scaled")
    chain.end.replace_all_uses_with(operand, replace_graph_outputs=True)
