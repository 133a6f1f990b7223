"""What follows an attention: the heads put side by side again, ·W_O, and guards for dead rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_scalar
from attnport.export.mask_data import alive_at, scores_shape
from attnport.export.movement import MOVEMENT, Chain, push_indices
from attnport.export.sites import AttentionSite

RowLayout = Literal["batch-first", "sequence-first", "flat", "flat sequence-first"]


@dataclass(frozen=True)
class MergedHeads:
    """The context with its heads side by side, in the order (h,d).

    Attributes:
        value: (B,N,E) for "batch-first", (N,B,E) for "sequence-first"; (B·N,E) and (N·B,E) for the
            same, flat.
        layout: Which of these.
        nodes: The nodes from the context to it.
    """

    value: ir.Value
    layout: RowLayout
    nodes: tuple[ir.Node, ...]

    @property
    def sequence_first(self) -> bool:
        return self.layout.endswith("sequence-first")

    @property
    def flat(self) -> bool:
        return self.layout.startswith("flat")

    @property
    def is_canonical(self) -> bool:
        if [node.op_type for node in self.nodes] != ["Transpose", "Reshape"]:
            return False
        shape = self.nodes[1].inputs[1]
        return shape is not None and shape.const_value is not None


def merged_heads(
    site: AttentionSite, context: ir.Value, graphs: Sequence[ConcreteGraph]
) -> MergedHeads | None:
    """The last value after the context that holds its rows with the heads side by side.

    Args:
        site: The attention.
        context: Its context, after a guard on it where there is one.
        graphs: The graph at concrete sizes.
    """
    nodes: list[ir.Node] = []
    value, found = context, _merged_at(site, context, [], context, graphs)
    while (node := _only_movement(value)) is not None:
        nodes.append(node)
        value = node.outputs[0]
        found = _merged_at(site, context, nodes, value, graphs) or found
    return found


def _only_movement(value: ir.Value) -> ir.Node | None:
    """The one node that uses the value, if it only moves elements."""
    node = _only_user(value)
    if node is None or node.domain or node.op_type not in MOVEMENT or node.op_type == "Split":
        return None
    return node if node.inputs[0] is value else None


def _only_user(value: ir.Value) -> ir.Node | None:
    """The node that uses the value, if it is one alone and stands in no branch or loop."""
    users = list(dict.fromkeys(use.node for use in value.uses()))
    producer = value.producer()
    if len(users) != 1 or value.is_graph_output() or producer is None:
        return None
    return users[0] if users[0].graph is producer.graph else None


def _merged_at(
    site: AttentionSite,
    context: ir.Value,
    nodes: Sequence[ir.Node],
    value: ir.Value,
    graphs: Sequence[ConcreteGraph],
) -> MergedHeads | None:
    layouts = {_layout_at(site, Chain(context, value, tuple(nodes)), graph) for graph in graphs}
    layout = layouts.pop()
    if layouts or layout is None:
        return None
    return MergedHeads(value, layout, tuple(nodes))


def _layout_at(site: AttentionSite, chain: Chain, graph: ConcreteGraph) -> RowLayout | None:
    indices = push_indices(chain, graph)
    shape = _context_shape(site, graph)
    if indices is None or shape is None:
        return None
    if not chain.nodes and site.heads is not None:  # the operator's (B,N,E)
        return "batch-first"
    batch, heads, tokens, size = shape
    if indices.size != batch * heads * tokens * size:
        return None
    plain = np.arange(indices.size).reshape(shape)
    by_batch, by_token = (plain.transpose(perm) for perm in ((0, 2, 1, 3), (2, 0, 1, 3)))
    rows: dict[RowLayout, np.ndarray] = {
        "batch-first": by_batch.reshape(batch, tokens, heads * size),
        "sequence-first": by_token.reshape(tokens, batch, heads * size),
        "flat": by_batch.reshape(batch * tokens, heads * size),
        "flat sequence-first": by_token.reshape(batch * tokens, heads * size),
    }
    return next((name for name, row in rows.items() if np.array_equal(indices, row)), None)


def _context_shape(site: AttentionSite, graph: ConcreteGraph) -> tuple[int, int, int, int] | None:
    """(B,H,N,Dv), also where the context stands as (B·H,N,Dv)."""
    shape = graph.shape(site.context)
    if shape is None or len(shape) not in (3, 4):
        return None
    if len(shape) == 4:
        return (shape[0], shape[1], shape[2], shape[3])
    heads = site.layouts["query"].heads if "query" in site.layouts else 0
    if not heads or shape[0] % heads:
        return None
    return (shape[0] // heads, heads, shape[1], shape[2])


def output_product(merged: MergedHeads | None) -> ir.Node | None:
    """The MatMul with W_O, if it is all that uses the merged heads."""
    if merged is None or merged.flat:
        return None
    user = _only_user(merged.value)
    if user is None or user.op_type != "MatMul" or user.inputs[0] is not merged.value:
        return None
    weight = user.inputs[1]
    constant = weight is not None and weight.const_value is not None
    return user if constant else None


@dataclass(frozen=True)
class FlatOutput:
    """·W_O + b_O on flattened rows, and the rows parted again (torch.nn.MultiheadAttention).

    Attributes:
        value: (B,N,D), or (N,B,D).
        bias: b_O, (D,), or None.
    """

    value: ir.Value
    bias: ir.Value | None


def flat_output(
    merged: MergedHeads | None, graphs: Sequence[ConcreteGraph], site: AttentionSite
) -> FlatOutput | None:
    """What follows heads that were merged flat, if it is a Gemm and a Reshape and nothing else."""
    product = _only_user(merged.value) if merged is not None and merged.flat else None
    if merged is None or product is None or product.op_type != "Gemm":
        return None
    _, weight, bias = (*product.inputs, None)[:3]
    constant = weight is not None and weight.const_value is not None
    reshape = _only_user(product.outputs[0])
    turned = product.attributes.get_int("transA", 0)
    if not constant or turned or reshape is None:
        return None
    if bias is not None and (bias.const_value is None or len(bias.const_value.shape) != 1):
        return None
    if product.attributes.get_float("beta", 1.0) != 1.0 or reshape.op_type != "Reshape":
        return None
    for graph in graphs:
        shape, context = graph.shape(reshape.outputs[0]), _context_shape(site, graph)
        if shape is None or context is None:
            return None
        rows = (context[2], context[0]) if merged.sequence_first else (context[0], context[2])
        if len(shape) != 3 or shape[:2] != rows:
            return None
    return FlatOutput(reshape.outputs[0], bias)


def guard_on(value: ir.Value, hidden: ir.Value | None = None) -> ir.Node | None:
    """The Where of `Where(condition, value, 0)`, if that is the value's only use.

    Args:
        value: What may be guarded.
        hidden: What stands in place of 0, where the guard is behind a bias.
    """
    user = _only_user(value)
    if user is None or user.op_type != "Where":
        return None
    _, kept, other = user.inputs
    expected = constant_scalar(other) == 0.0 if hidden is None else other is hidden
    return user if kept is value and expected else None


def guards_of(site: AttentionSite, graphs: Sequence[ConcreteGraph]) -> list[ir.Node]:
    """What may be a guard for dead rows: on the context, and behind the output projection."""
    merged = merged_heads(site, site.context, graphs)
    product, flat = output_product(merged), flat_output(merged, graphs, site)
    found = [guard_on(site.context)]
    if product is not None:
        found.append(guard_on(product.outputs[0]))
    if flat is not None:
        found.append(guard_on(flat.value, flat.bias))
    return [guard for guard in found if guard is not None]


def guard_is_redundant(site: AttentionSite, guard: ir.Node, fed: Sequence[ConcreteGraph]) -> bool:
    """Whether the guard's condition is "this row has a visible key", tried on random masks."""
    condition = guard.inputs[0]
    assert condition is not None
    return bool(fed) and all(_says_alive(site, condition, graph) for graph in fed)


def _says_alive(site: AttentionSite, condition: ir.Value, graph: ConcreteGraph) -> bool:
    kept, shape = graph.data(condition), scores_shape(site, graph)
    alive = alive_at(site, shape, graph) if shape is not None else None
    if kept is None or alive is None or kept.shape[-1:] != (1,):
        return False
    rows = [alive]
    if kept.ndim == 3 and (alive == alive[:, :1]).all():  # (B,N,1) or (N,B,1), after ·W_O
        rows = [alive[:, 0], alive[:, 0].swapaxes(0, 1)]
    return any(_broadcasts_to(kept, row) for row in rows)


def _broadcasts_to(kept: np.ndarray, alive: np.ndarray) -> bool:
    try:
        return np.array_equal(np.broadcast_to(kept, alive.shape), alive)
    except ValueError:
        return False
