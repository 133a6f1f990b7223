"""What looks like an attention and is none that the passes understand, with the node to blame.

A graph also holds softmaxes that are no attention (a classifier's, a router's): these are told by
their having no product of two activations above them, or none below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from attnport.export import capture_operator
from attnport.export.records import AttentionInfo
from attnport.export.sites import AttentionSite

# Between a softmax and its products; beyond it something else is computed.
_FURTHEST = 12
# What finding follows from a softmax to the product of queries and keys, and to that with values.
_ABOVE = {"Add", "Cast", "Div", "Identity", "Mul", "Tanh", "Where"}
_BELOW = {"Cast", "Dropout", "Identity"}

Step = Callable[[ir.Node], Iterator[ir.Node]]


def unrecognised(graph: ir.Graph, sites: Sequence[AttentionSite]) -> list[AttentionInfo]:
    """One record for each, named on from the sites.

    Args:
        graph: The graph; it is not changed.
        sites: What was found in it.
    """
    found = {node for site in sites for node in site.nodes}
    reasons = [(n, _reason(n)) for n in graph if n not in found]
    for owner, body in bodies(graph):
        for node in body:
            if _is_attention(node):
                where = f"the body of {owner.name or 'a node'} ({owner.op_type})"
                reasons.append((node, f"it stands in {where}, which is passed through unchanged"))
    said = [(node, reason) for node, reason in reasons if reason]
    return [_info(f"attn{len(sites) + i}", *entry) for i, entry in enumerate(said)]


def bodies(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Graph]]:
    """Every graph inside a node (a branch of If, the body of Loop or Scan), with that node."""
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                inner = [attribute.as_graph()]
            elif attribute.type == ir.AttributeType.GRAPHS:
                inner = list(attribute.as_graphs())
            else:
                continue
            for body in inner:
                yield node, body
                yield from bodies(body)


def _info(name: str, node: ir.Node, reason: str) -> AttentionInfo:
    operator = node.op_type != "Softmax"
    return AttentionInfo(
        name=name, source="operator" if operator else "pattern", nodes=(node.name or "",),
        heads=None, kv_heads=None, head_size=None, scale=None, mask="none", causal=False,
        dead_rows=False, recognised=False, reason=reason,
    )  # fmt: skip


def _is_attention(node: ir.Node) -> bool:
    """Whether a node of a body is an attention, or its softmax."""
    if node.op_type == "Softmax":
        return bool(_path(node, _makers)) and bool(_path(node, _users))
    return node.op_type == "Attention" and node.domain in ("", capture_operator.DOMAIN)


def _reason(node: ir.Node) -> str:
    """Why a node of the graph is no recognised attention; empty where it looks like none."""
    if node.domain and node.domain != capture_operator.DOMAIN:
        if "Attention" not in node.op_type:
            return ""
        return (
            f"{node.domain}.{node.op_type} is no operator of the ONNX standard, so it is passed "
            "through unchanged: give the file from before it was fused"
        )
    if node.op_type != "Softmax":
        return ""
    above, below = _path(node, _makers), _path(node, _users)
    if not above or not below:
        return ""
    for path, known, what in (
        (above[:-1], _ABOVE, "the scores come"), (below[:-1], _BELOW, "the probabilities go"),
    ):  # fmt: skip
        strange = next((n for n in path if n.domain or n.op_type not in known), None)
        if strange is not None:
            return f"{what} through {_called(strange)}, which is not understood there"
    between = ", ".join(_called(n) for n in (*above[:-1], *below[:-1])) or _called(node)
    return f"what stands around the softmax is not what an attention has there: {between}"


def _called(node: ir.Node) -> str:
    return f"{node.name} ({node.op_type})" if node.name else f"a node {node.op_type}"


def _path(softmax: ir.Node, step: Step) -> list[ir.Node]:
    """The nodes to the nearest product of two activations, that product last; else none."""
    paths: list[list[ir.Node]] = [[node] for node in step(softmax)]
    seen: set[ir.Node] = set()
    while paths:
        path = paths.pop(0)
        node = path[-1]
        if node in seen or len(path) > _FURTHEST:
            continue
        seen.add(node)
        if node.op_type in ("MatMul", "Einsum", "Gemm") and not node.domain:
            if all(v is None or v.const_value is None for v in node.inputs):
                return path
            continue
        if node.op_type not in ("Softmax", "Shape"):
            paths += [[*path, following] for following in step(node)]
    return []


def _makers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        maker = value.producer() if value is not None else None
        if maker is not None and maker.graph is node.graph:
            yield maker


def _users(node: ir.Node) -> Iterator[ir.Node]:
    for output in node.outputs:
        for use in output.uses():
            if use.node.graph is node.graph:
                yield use.node
