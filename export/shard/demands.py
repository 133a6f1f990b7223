"""What a rank must hold of every value, for the rows of the products that are split by rows.

From those products upwards, one sweep against the order of the graph: each node is asked what part
of its inputs it needs for the part of its output that is wanted. A product with a constant matrix
answers with columns, and ends the way; so do constants, of which a part is kept, and inputs of the
graph, of which a part is fed. Where another node wants a value whole, it is computed whole, and the
part is picked from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from attnport.errors import GraphError
from attnport.export.concrete import ConcreteGraph
from attnport.export.shard.held import CannotSplitError, Held, union
from attnport.export.shard.operators import needs, shape_of, weight_of
from attnport.export.shard.pairs import (
    RowProduct,
    feed_forwards,
    output_products,
)
from attnport.export.sites import OPERANDS, AttentionSite


@dataclass
class Demands:
    """What one rank holds.

    Attributes:
        rows: The products that are split by rows.
        columns: The products that are split by columns, and which.
        parts: The values of which the rank holds a part.
        asks: What part a node wants of an input, by index.
        stopped: Values that are computed whole though a part is wanted, and why.
    """

    rows: tuple[RowProduct, ...]
    columns: dict[ir.Node, Held] = field(default_factory=dict)
    parts: dict[ir.Value, Held] = field(default_factory=dict)
    asks: dict[tuple[ir.Node, int], Held] = field(default_factory=dict)
    stopped: dict[ir.Value, str] = field(default_factory=dict)


def demands_of_rank(
    graph: ir.Graph,
    sites: Sequence[AttentionSite],
    concrete: ConcreteGraph,
    rank: int,
    ranks: int,
) -> Demands:
    """What a rank holds, so that every attention and feed-forward is split.

    Args:
        graph: The graph; it is not changed.
        sites: Its attentions.
        concrete: The graph at concrete sizes.
        rank: Which rank, from 0.
        ranks: How many.

    Raises:
        GraphError: If an attention cannot be split by heads; names it and what is in the way.
    """
    attentions = [
        product for site in sites for product in output_products(site, rank, ranks, concrete)
    ]
    taken = {product.product for product in attentions}
    alone = _sweep(graph, attentions, concrete)
    for site in sites:
        _require_split(site, alone)
    forwards = feed_forwards(graph, taken | set(alone.columns), rank, ranks, concrete)
    while True:
        found = _sweep(graph, [*attentions, *forwards], concrete)
        kept = [
            product for product in forwards if not _stopped_on(found, [product.product.inputs[0]])
        ]
        if len(kept) == len(forwards):
            order = {node: number for number, node in enumerate(graph)}
            found.rows = tuple(sorted(found.rows, key=lambda row: order[row.product]))
            return found
        forwards = kept


def _sweep(graph: ir.Graph, rows: Sequence[RowProduct], concrete: ConcreteGraph) -> Demands:
    found = Demands(tuple(rows))
    rows_of = {row.product: row.rows for row in rows}
    for node in reversed(list(graph)):
        if node in rows_of:
            found.asks[node, 0] = rows_of[node]
            continue
        parts = {}
        for index, value in enumerate(node.outputs):
            part = _wanted(found, value)
            if part is not None:
                parts[index] = part
        if parts:
            _visit(found, node, parts, concrete)
    for value in graph.inputs:
        part = _wanted(found, value)
        if part is not None:
            found.parts[value] = part
    return found


def _visit(found: Demands, node: ir.Node, parts: dict[int, Held], concrete: ConcreteGraph) -> None:
    last = len(shape_of(node.outputs[0], concrete)) - 1
    if weight_of(node) is not None and parts[0].axis == last:
        found.columns[node] = parts[0]
    else:
        try:
            asked = needs(node, parts, concrete)
        except CannotSplitError as err:
            found.stopped.update({node.outputs[index]: str(err) for index in parts})
            return
        found.asks.update({(node, index): part for index, part in asked.items()})
    found.parts.update({node.outputs[index]: part for index, part in parts.items()})


def _wanted(found: Demands, value: ir.Value) -> Held | None:
    """The part that all users of a value want together; None where one wants all of it."""
    wanted, whole = [], None
    for use in value.uses():
        part = found.asks.get((use.node, use.idx))
        if part is not None:
            wanted.append(part)
        elif use.node.op_type != "Shape":
            whole = use.node
    if not wanted:
        return None
    if whole is not None:
        found.stopped[value] = f"{value.name} is used by {whole.name} ({whole.op_type}), too"
        return None
    joined = union(wanted)
    if joined is None:
        found.stopped[value] = f"{value.name} is split along one axis here and another one there"
    return None if joined is None or joined.count == joined.size else joined


def _require_split(site: AttentionSite, found: Demands) -> None:
    """Queries, keys and values must come from columns, constants or inputs, and nothing whole."""
    for which in OPERANDS:
        why = _stopped_on(found, [site.operand(which)])
        if why:
            raise GraphError(f"{site.name} cannot be split by heads at its {which}: {why}")


def _stopped_on(found: Demands, values: Iterable[ir.Value | None]) -> str:
    """Why something on the way up from some values is computed whole; "" where nothing is."""
    pending, seen = list(values), set()
    while pending:
        value = pending.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        if value in found.stopped:
            return found.stopped[value]
        node = value.producer()
        if node is not None and value in found.parts and node not in found.columns:
            pending += [
                node.inputs[index]
                for index in range(len(node.inputs))
                if (node, index) in found.asks
            ]
    return ""
