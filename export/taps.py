"""Where the heads of an operand leave their projection.

Mostly the operand itself: a projection, moved to heads. With a rotation of positions or a norm of
queries and keys in between, it is an earlier value, found by walking back from the operand to the
one projection it is made of, and forward again for as long as elements are only moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import (
    MOVEMENT,
    Chain,
    HeadLayout,
    SourceLayout,
    head_layout,
    push_indices,
    trace_back,
)
from attnport.export.sites import OPERANDS, AttentionSite, Operand

# Beyond this many nodes between a projection and its attention something else is going on.
_MAX_BETWEEN = 120
_PRODUCTS = {"MatMul", "Gemm", "Conv", "Einsum", "Softmax", "Attention"}


@dataclass(frozen=True)
class Tap:
    """The value up to which an operand is nothing but a projection, moved.

    Attributes:
        chain: From the projection's output to the value.
        layout: Which columns of the projection the value takes, as heads.
        transposed: Whether the value is (B,H,Dh,N), not (B,H,N,Dh).
        direct: Whether the value is the operand itself.
        rows: Whether the value is a block of columns, (B,N,E), of which heads are made later.
    """

    chain: Chain
    layout: HeadLayout
    transposed: bool = False
    direct: bool = False
    rows: bool = False


def find_taps(site: AttentionSite, graphs: Sequence[ConcreteGraph]) -> dict[Operand, Tap]:
    """The tap of every operand that has one."""
    taps: dict[Operand, Tap] = {}
    for which in OPERANDS:
        layout = site.layouts.get(which)
        if layout is not None:
            turned = which == "key" and site.key_transposed
            direct = Tap(site.chains[which], layout, turned, direct=True)
            taps[which] = _before_other_uses(direct, graphs) or direct
            continue
        tap = _behind(site.operand(which), graphs)
        if tap is not None:
            taps[which] = tap
    return taps


def _before_other_uses(tap: Tap, graphs: Sequence[ConcreteGraph]) -> Tap | None:
    """The heads that something else takes as well (DeBERTa's positions), before they move on."""
    for node, following in pairwise(tap.chain.nodes):
        value = next(v for v in following.inputs if v in node.outputs)
        if value is not None and not _only_used_by(value, following):
            found = _tap_at(trace_back(value, graphs), graphs)
            return found if found is not None and not found.rows else None
    return None


def _only_used_by(value: ir.Value, node: ir.Node) -> bool:
    others = {use.node for use in value.uses() if use.node.op_type != "Shape"} - {node}
    return not others and not value.is_graph_output()


def _behind(operand: ir.Value, graphs: Sequence[ConcreteGraph]) -> Tap | None:
    """The tap of an operand that more than movement separates from its projection."""
    upstream = _upstream(operand)
    products = [node for node in upstream if _is_projection(node)]
    if len(products) != 1:
        return None
    output = _with_bias(products[0].outputs[0], upstream)
    nodes: list[ir.Node] = []
    value, best = output, _tap_at(Chain(output, output, ()), graphs)
    while (node := _only_mover(value, upstream)) is not None:
        nodes.append(node)
        value = _towards(node, upstream)
        tap = _tap_at(Chain(output, value, tuple(nodes)), graphs)
        if tap is not None and (best is None or best.rows or not tap.rows):
            best = tap
    return best


def _upstream(operand: ir.Value) -> Mapping[ir.Node, None]:
    """The nodes that the operand is computed by, back to and with the first products."""
    found: dict[ir.Node, None] = {}
    pending = [operand]
    while pending and len(found) <= _MAX_BETWEEN:
        node = pending.pop().producer()
        if node is None or node in found:
            continue
        found[node] = None
        if node.op_type not in _PRODUCTS and node.op_type != "Shape":
            pending += [value for value in node.inputs if value is not None]
    return found


def _is_projection(node: ir.Node) -> bool:
    if node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
        return False
    weight = node.inputs[1]
    transpose = weight.producer() if weight is not None else None
    if transpose is not None and transpose.op_type == "Transpose":
        weight = transpose.inputs[0]
    tensor = weight.const_value if weight is not None else None
    return tensor is not None and len(tensor.shape) == 2


def _with_bias(output: ir.Value, upstream: Mapping[ir.Node, None]) -> ir.Value:
    users = [use.node for use in output.uses() if use.node in upstream]
    if len(users) == 1 and users[0].op_type == "Add":
        other = next((v for v in users[0].inputs if v is not output), None)
        tensor = other.const_value if other is not None else None
        if tensor is not None and len(tensor.shape) == 1:
            return users[0].outputs[0]
    return output


def _only_mover(value: ir.Value, upstream: Mapping[ir.Node, None]) -> ir.Node | None:
    users = list(dict.fromkeys(use.node for use in value.uses() if use.node in upstream))
    if len(users) != 1 or users[0].domain or users[0].op_type not in MOVEMENT:
        return None
    node = users[0]
    outputs = [output for output in node.outputs if _leads_on(output, upstream)]
    return node if node.inputs[0] is value and len(outputs) == 1 else None


def _towards(node: ir.Node, upstream: Mapping[ir.Node, None]) -> ir.Value:
    return next(output for output in node.outputs if _leads_on(output, upstream))


def _leads_on(output: ir.Value, upstream: Mapping[ir.Node, None]) -> bool:
    return any(use.node in upstream for use in output.uses())


def _tap_at(chain: Chain, graphs: Sequence[ConcreteGraph]) -> Tap | None:
    """The chain as a tap, if its end is heads or a block of columns, alike at every size."""
    taps = [_tap_in(chain, graph) for graph in graphs]
    first = taps[0]
    if first is None:
        return None
    for tap in taps[1:]:
        if tap is None or not tap.layout.same_as(first.layout):
            return None
        if (tap.transposed, tap.rows) != (first.transposed, first.rows):
            return None
    return first


def _tap_in(chain: Chain, graph: ConcreteGraph) -> Tap | None:
    indices, shape = push_indices(chain, graph), graph.shape(chain.source)
    if indices is None or shape is None:
        return None
    if indices.ndim == 4:
        for turned in (False, True):
            layout = head_layout(indices.swapaxes(-1, -2) if turned else indices, shape)
            if layout is not None:
                return Tap(chain, layout, transposed=turned)
    columns = indices[(0,) * (indices.ndim - 1)] if indices.ndim else indices
    rows = np.arange(int(np.prod(shape[:-1]))).reshape((*shape[:-1], 1)) * shape[-1]
    if indices.ndim == len(shape) and np.array_equal(indices, rows + columns):
        flat: SourceLayout = "flat" if len(shape) == 2 else "batch-first"
        return Tap(chain, HeadLayout(flat, columns[None]), rows=True)
    return None


def repeated_heads(
    chain: Chain, graph: ConcreteGraph, *, transposed: bool
) -> tuple[ir.Value, np.ndarray] | None:
    """For an operand whose heads are repeated: the heads, and which of them each head is.

    Args:
        chain: To the operand, from whatever makes it.
        graph: The graph at concrete sizes.
        transposed: Whether the operand is (B,H,Dh,T).

    Returns:
        A value (B,Hkv,T,Dh) on the chain, and an index (H,); None where nothing is repeated.
    """
    following = zip(chain.nodes, chain.nodes[1:], strict=False)
    starts = [chain.source, *(_output_for(user, node) for node, user in following)]
    for number, start in enumerate(starts):
        part = Chain(start, chain.end, chain.nodes[number:])
        indices, shape = push_indices(part, graph), graph.shape(start)
        if indices is None or shape is None or indices.ndim != 4 or len(shape) != 4:
            continue
        index = _head_index(indices.swapaxes(-1, -2) if transposed else indices, shape)
        if index is not None and len(index) > shape[1]:
            return start, index
    return None


def _output_for(user: ir.Node, node: ir.Node) -> ir.Value:
    """The output of a node (a Split has several) that the next one on the chain takes."""
    return next(value for value in node.outputs if value in user.inputs)


def _head_index(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Which of the heads of (B,Hkv,T,Dh) each head of (B,H,T,Dh) is."""
    if indices.size == 0 or indices.shape[0] != shape[0] or indices.shape[2:] != shape[2:]:
        return None
    index: np.ndarray = indices[0, :, 0, 0] // (shape[2] * shape[3])
    source = np.arange(int(np.prod(shape))).reshape(shape)
    same = index.max() < shape[1] and np.array_equal(indices, source[:, index])
    return index if same else None
