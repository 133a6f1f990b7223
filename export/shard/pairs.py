"""Which products are split by rows: the output projections, and the second of each feed-forward.

Before each stand products that are split by columns: together they are the pairs of Megatron-LM
(Shoeybi et al. 2019, arXiv 1909.08053, section 3), with one sum over the ranks after each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.errors import GraphError, UsageError
from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import MOVEMENT
from attnport.export.shard.held import CannotSplitError, Held
from attnport.export.shard.operators import (
    ELEMENTWISE,
    gives,
    shape_of,
    weight_axes,
    weight_of,
)
from attnport.export.sites import AttentionSite


@dataclass(frozen=True)
class RowProduct:
    """A product that is split by the rows of its matrix.

    Attributes:
        name: What it belongs to: "attn0", "feed_forward0".
        kind: Which of the two.
        product: The MatMul or Gemm.
        rows: Which of its rows the rank holds, along the last axis of its input.
    """

    name: str
    kind: Literal["attention", "feed-forward"]
    product: ir.Node
    rows: Held

    def on(self, product: ir.Node) -> RowProduct:
        """The same on a copy of the graph."""
        return replace(self, product=product)

    @property
    def width(self) -> int:
        """How many numbers it gives for each token."""
        return _sizes(self.product)[1]


def heads_of_rank(heads: int, rank: int, ranks: int) -> tuple[int, ...]:
    """Heads 0, 1, … in order: as many for each rank."""
    each = heads // ranks
    return tuple(range(rank * each, (rank + 1) * each))


def part_of_rank(width: int, rank: int, ranks: int) -> tuple[int, ...]:
    """Columns in order; where they do not divide, the first ranks hold one more."""
    return tuple(int(at) for at in np.array_split(np.arange(width), ranks)[rank])


def require_divisible(sites: Sequence[AttentionSite], graph: ConcreteGraph, ranks: int) -> None:
    """Every attention must have whole heads for every rank.

    Raises:
        GraphError: If there is no attention, or the number of heads of one is not known.
        UsageError: If the heads do not divide.
    """
    if not sites:
        raise GraphError("the graph holds no attention that is recognised: nothing is to be split")
    counts = {site.name: head_count(site, graph) for site in sites}
    wrong = {name: heads for name, heads in counts.items() if heads % ranks}
    if wrong:
        name, heads = next(iter(wrong.items()))
        common = int(np.gcd.reduce(list(counts.values())))
        valid = ", ".join(str(n) for n in range(2, common + 1) if common % n == 0)
        raise UsageError(
            f"{name} has {heads} heads, which {ranks} ranks cannot share evenly: "
            + (f"give --ranks {valid}" if valid else "this model cannot be split by heads")
        )


def head_count(site: AttentionSite, graph: ConcreteGraph) -> int:
    """H of an attention whose context is (B,H,N,Dh).

    Raises:
        GraphError: If it is not understood, or has no axis of heads.
    """
    if site.problem:
        raise GraphError(f"{site.name} cannot be split by heads: {site.problem}")
    shape = graph.shape(site.context)
    if shape is None or len(shape) != 4:
        raise GraphError(
            f"{site.name} cannot be split by heads: its context has no axis of heads "
            f"(shape {shape})"
        )
    return shape[1]


def output_products(
    site: AttentionSite, rank: int, ranks: int, graph: ConcreteGraph
) -> list[RowProduct]:
    """The products that an attention's context goes to, with the rows of the rank's heads.

    Raises:
        GraphError: If it goes anywhere else.
    """
    heads = head_count(site, graph)
    part = Held(1, heads_of_rank(heads, rank, ranks), heads)
    found: dict[ir.Node, Held] = {}
    pending = [(site.context, part)]
    try:
        while pending:
            value, held = pending.pop()
            pending += _followed(value, held, graph, found)
    except CannotSplitError as err:
        raise GraphError(
            f"{site.name} cannot be split by heads: its context does not end in a product with a "
            f"constant matrix alone ({err})"
        ) from err
    if not found:
        raise GraphError(
            f"{site.name} cannot be split by heads: no output projection follows its context"
        )
    return [RowProduct(site.name, "attention", node, rows) for node, rows in found.items()]


def _followed(
    value: ir.Value, held: Held, graph: ConcreteGraph, found: dict[ir.Node, Held]
) -> list[tuple[ir.Value, Held]]:
    """Where a part of a value goes: to products, which are noted, or on to other values."""
    following = []
    if value.is_graph_output():
        raise CannotSplitError(f"{value.name} is an output of the graph")
    for use in value.uses():
        last = len(shape_of(value, graph)) - 1
        if use.node.op_type == "Shape":
            continue
        if weight_of(use.node) is not None and use.idx == 0 and held.axis == last:
            found[use.node] = held
            continue
        made = gives(use.node, use.idx, held, graph)
        following += [(use.node.outputs[index], part) for index, part in made.items()]
    return following


def feed_forwards(
    graph: ir.Graph, taken: set[ir.Node], rank: int, ranks: int, concrete: ConcreteGraph
) -> list[RowProduct]:
    """The second products of feed-forwards: D -> F, element by element, F -> D.

    Args:
        graph: The graph.
        taken: Products that are split already.
        rank: Which rank's rows.
        ranks: How many there are.
        concrete: The graph at concrete sizes.
    """
    found: list[RowProduct] = []
    taken = set(taken)
    for node in graph:
        firsts = _first_products(node) if node not in taken else set()
        width = _sizes(node)[0] if firsts else 0
        if not firsts or firsts & taken or width < ranks or node.inputs[0] is None:
            continue
        if any(_sizes(first)[0] != _sizes(node)[1] for first in firsts):
            continue  # a head that narrows: its sum would cost more than it spares
        axis = len(shape_of(node.inputs[0], concrete)) - 1
        rows = Held(axis, part_of_rank(width, rank, ranks), width)
        name = f"feed_forward{len(found)}"
        found.append(RowProduct(name, "feed-forward", node, rows))
        taken |= {node, *firsts}
    return found


def _first_products(node: ir.Node) -> set[ir.Node]:
    """The products that a product's input is made of element by element; none if of others, too."""
    if weight_of(node) is None:
        return set()
    found: set[ir.Node] = set()
    pending, seen = [node.inputs[0]], set()
    while pending:
        value = pending.pop()
        if value is None or value in seen or value.const_value is not None:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None:
            return set()
        if weight_of(producer) is not None:
            found.add(producer)
        elif not producer.domain and producer.op_type in MOVEMENT:
            pending.append(producer.inputs[0])
        elif not producer.domain and producer.op_type in ELEMENTWISE:
            pending += producer.inputs
        else:
            return set()
    return found


def _sizes(product: ir.Node) -> tuple[int, int]:
    """The numbers of rows and columns of a product's matrix."""
    weight = weight_of(product)
    assert weight is not None
    assert weight.const_value is not None
    shape = weight.const_value.shape.numpy()
    rows, columns = weight_axes(product)
    return int(shape[rows]), int(shape[columns])
