"""The products with constant matrices that queries, keys and values come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import HeadLayout, SourceLayout, push_indices, trace_back
from attnport.export.records import ProjectionGroup
from attnport.export.sites import OPERANDS, AttentionSite, Operand

_KINDS: dict[tuple[Operand, ...], Literal["qkv", "kv", "qk", "qv"]] = {
    ("query", "key", "value"): "qkv",
    ("key", "value"): "kv",
    ("query", "key"): "qk",
    ("query", "value"): "qv",
}


@dataclass(frozen=True)
class Projection:
    """X·W, or X·W + b, with W and b constant.

    Attributes:
        x: (B,N,D) or (N,B,D): what is projected, before any flattening.
        product: The MatMul or Gemm node.
        output: What heads are made of: the product, or the sum with the bias.
        weight: The constant that W is made of.
        transposed: Whether the constant is Wᵀ, (C,D).
        bias: (C,), or None.
        layout: Whether x is batch-first or sequence-first.
    """

    x: ir.Value
    product: ir.Node
    output: ir.Value
    weight: ir.Value
    transposed: bool
    bias: ir.Value | None
    layout: SourceLayout

    def columns(self, layout: HeadLayout) -> np.ndarray:
        """(D,Hkv·Dh): the columns of W that the distinct heads take, in order."""
        assert self.weight.const_value is not None
        matrix: np.ndarray = self.weight.const_value.numpy()
        picked = layout.distinct_heads()[0].ravel()
        return matrix[picked].T if self.transposed else matrix[:, picked]

    def bias_columns(self, layout: HeadLayout) -> np.ndarray | None:
        """(Hkv·Dh,): likewise of b."""
        if self.bias is None or self.bias.const_value is None:
            return None
        bias: np.ndarray = self.bias.const_value.numpy()
        return np.take(bias, layout.distinct_heads()[0].ravel())


def projection_of(
    source: ir.Value, layout: HeadLayout, graphs: Sequence[ConcreteGraph]
) -> Projection | None:
    """The projection that computes a source of heads; None where something else does."""
    node = source.producer()
    if node is None or node.domain:
        return None
    bias = None
    if node.op_type == "Add":
        bias = next((value for value in node.inputs if _is_constant(value, 1)), None)
        product = next((v for v in node.inputs if v is not bias), None)
        inner = product.producer() if product is not None else None
        if bias is None or inner is None or inner.op_type != "MatMul":
            return None
        node = inner
    if node.op_type == "MatMul":
        return _from_matmul(node, source, bias, layout, graphs)
    if node.op_type == "Gemm":
        return _from_gemm(node, source, layout, graphs)
    return None


def _from_matmul(
    node: ir.Node,
    output: ir.Value,
    bias: ir.Value | None,
    layout: HeadLayout,
    graphs: Sequence[ConcreteGraph],
) -> Projection | None:
    x, weight = node.inputs
    transposed = False
    transpose = weight.producer() if weight is not None else None
    if transpose is not None and transpose.op_type == "Transpose":
        weight, transposed = transpose.inputs[0], True
    if not _is_constant(weight, 2) or x is None:
        return None
    assert weight is not None
    return _with_tokens(x, node, output, weight, transposed, bias, layout, graphs)


def _from_gemm(
    node: ir.Node, output: ir.Value, layout: HeadLayout, graphs: Sequence[ConcreteGraph]
) -> Projection | None:
    x, weight, bias = (*node.inputs, None)[:3]
    plain = (
        node.attributes.get_float("alpha", 1.0) == 1.0
        and node.attributes.get_float("beta", 1.0) == 1.0
        and not node.attributes.get_int("transA", 0)
    )
    if not plain or x is None or not _is_constant(weight, 2):
        return None
    if bias is not None and not _is_constant(bias, 1):
        return None
    assert weight is not None
    transposed = bool(node.attributes.get_int("transB", 0))
    return _with_tokens(x, node, output, weight, transposed, bias, layout, graphs)


def _with_tokens(
    x: ir.Value,
    product: ir.Node,
    output: ir.Value,
    weight: ir.Value,
    transposed: bool,
    bias: ir.Value | None,
    layout: HeadLayout,
    graphs: Sequence[ConcreteGraph],
) -> Projection | None:
    """Undoes a flattening of (B,N,D) to (B·N,D) before the product."""
    if layout.layout != "flat":
        return Projection(x, product, output, weight, transposed, bias, layout.layout)
    chain = trace_back(x)
    for graph in graphs:
        shape = graph.shape(chain.source)
        moved = push_indices(chain, graph)
        if shape is None or moved is None or len(shape) != 3 or chain.scale != 1.0:
            return None
        if not np.array_equal(moved.ravel(), np.arange(moved.size)):
            return None
    return Projection(chain.source, product, output, weight, transposed, bias, "batch-first")


def _is_constant(value: ir.Value | None, rank: int) -> bool:
    tensor = value.const_value if value is not None else None
    return tensor is not None and len(tensor.shape) == rank


@dataclass(frozen=True)
class Group:
    """Projections of one attention that share their input."""

    site: AttentionSite
    members: dict[Operand, Projection]

    @property
    def kind(self) -> Literal["qkv", "kv", "qk", "qv"]:
        return _KINDS[tuple(self.members)]

    @property
    def merged(self) -> bool:
        return len({projection.product for projection in self.members.values()}) == 1

    @property
    def problem(self) -> str:
        """Why it cannot be merged; empty where it can, or is."""
        if self.merged:
            return ""
        layouts = {projection.layout for projection in self.members.values()}
        if len(layouts) > 1:
            return "the projections read their input in different orders of batch and sequence"
        own = {node for which in self.members for node in self.site.chains[which].nodes}
        for which, projection in self.members.items():
            for value in _between(self.site, which, projection):
                if value.is_graph_output() or any(use.node not in own for use in value.uses()):
                    return (
                        f"the {which} projection is also used elsewhere "
                        f"({value.name}): merging would keep two copies of its weights"
                    )
        return ""

    def describe(self) -> ProjectionGroup:
        sizes = []
        for which in self.members:
            distinct, _ = self.site.layouts[which].distinct_heads()
            sizes.append(int(distinct.size))
        products = dict.fromkeys(p.product.name or "" for p in self.members.values())
        reason = ""
        if not self.merged:
            reason = self.problem or (
                f"{len(products)} separate products share one input and can be merged: "
                "`attnport export` does it for a module"
            )
        return ProjectionGroup(
            name=f"{self.site.name}/{self.kind}",
            attention=self.site.name,
            kind=self.kind,
            nodes=tuple(products),
            sizes=tuple(sizes),
            merged=self.merged,
            reason=reason,
        )


def _between(site: AttentionSite, which: Operand, projection: Projection) -> list[ir.Value]:
    """The values from the product's output up to, and without, the operand."""
    chain = site.chains[which]
    values = [projection.output, *(node.outputs[0] for node in chain.nodes[:-1])]
    return [value for value in values if value is not chain.end]


def find_groups(sites: Sequence[AttentionSite], graphs: Sequence[ConcreteGraph]) -> list[Group]:
    """For each attention the projections that share an input, where there are two or three."""
    groups = []
    for site in sites:
        by_input: dict[ir.Value, dict[Operand, Projection]] = {}
        for which in OPERANDS:
            layout = site.layouts.get(which)
            if layout is None:
                continue
            projection = projection_of(site.chains[which].source, layout, graphs)
            if projection is not None:
                by_input.setdefault(projection.x, {})[which] = projection
        groups += [Group(site, members) for members in by_input.values() if len(members) > 1]
    return groups
