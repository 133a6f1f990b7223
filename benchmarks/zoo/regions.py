"""Which kernels of a plan run an attention: from its projections to its output projection.

Both ends are read from the graph alone, in the same way for our exports and for stock ones, so
nothing here asks attnport's own passes: an attention is a Softmax between two products of
activations, or the Attention operator; its projections are the products with constant matrices
before it, its output projection the one after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx_ir as ir

from attnport.engines.plan import PlanLayer

_PRODUCTS = frozenset({"MatMul", "Gemm"})


def region_kernels(path: Path, layers: Sequence[PlanLayer]) -> int:
    """How many kernels hold a node that lies between projections and output projection.

    Args:
        path: The ONNX file that was built.
        layers: The builder's table.
    """
    graph = ir.load(path).graph
    inside = {node.name for node in attention_nodes(graph)}
    return sum(layer.is_kernel and not inside.isdisjoint(layer.nodes) for layer in layers)


def attention_nodes(graph: ir.Graph) -> set[ir.Node]:
    """The nodes of all attentions, projections and output projections included."""
    found: set[ir.Node] = set()
    for node in graph:
        if node.op_type == "Attention" or (node.op_type == "Softmax" and _is_attention(node)):
            found |= _region(node)
    return found


def _region(anchor: ir.Node) -> set[ir.Node]:
    """Everything after a projection and before (or at) an output projection, around the anchor."""
    above, projections = _reach(anchor, _producers)
    below, outputs = _reach(anchor, _users)
    after = set(projections)
    for node in _in_order(above):
        if any(producer in after for producer in _producers(node)):
            after.add(node)
    return after | below | outputs | {anchor}


def _reach(start: ir.Node, step: object) -> tuple[set[ir.Node], set[ir.Node]]:
    """The nodes up to products with constants, and those products."""
    between: set[ir.Node] = set()
    ends: set[ir.Node] = set()
    waiting = list(step(start))  # type: ignore[operator]
    while waiting:
        node = waiting.pop()
        if node in between or node in ends:
            continue
        if _has_constant_matrix(node):
            ends.add(node)
        else:
            between.add(node)
            waiting += step(node)  # type: ignore[operator]
    return between, ends


def _in_order(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    chosen = set(nodes)
    graph = next((node.graph for node in chosen if node.graph is not None), None)
    return [node for node in graph if node in chosen] if graph is not None else []


def _producers(node: ir.Node) -> list[ir.Node]:
    return [
        p for value in node.inputs if value is not None and (p := value.producer()) is not None
    ]


def _users(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]


def _has_constant_matrix(node: ir.Node) -> bool:
    return node.op_type in _PRODUCTS and any(
        value is not None and value.const_value is not None and len(value.const_value.shape) == 2
        for value in node.inputs
    )


def _is_attention(softmax: ir.Node) -> bool:
    """Whether a product of two activations lies below, and so above."""
    seen: set[ir.Node] = set()
    waiting = _users(softmax)
    while waiting:
        node = waiting.pop()
        if node in seen or _has_constant_matrix(node):
            continue
        if node.op_type in ("MatMul", "Einsum"):
            return True
        seen.add(node)
        waiting += _users(node)
    return False
