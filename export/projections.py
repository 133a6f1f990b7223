"""The products with constant matrices that queries, keys and values come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import SourceLayout, push_indices, trace_back
from attnport.export.records import ProjectionGroup
from attnport.export.sites import AttentionSite, Operand
from attnport.export.taps import Tap, find_taps

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

    @property
    def width(self) -> int:
        """C, the number of columns of W."""
        assert self.weight.const_value is not None
        return int(self.weight.const_value.shape.numpy()[0 if self.transposed else 1])

    def picked(self, tap: Tap) -> np.ndarray:
        """(Hkv·Dh,): the columns that the distinct heads take, in order."""
        return tap.layout.distinct_heads()[0].ravel()

    def columns(self, tap: Tap) -> np.ndarray:
        """(D,Hkv·Dh): these columns of W."""
        assert self.weight.const_value is not None
        matrix: np.ndarray = self.weight.const_value.numpy()
        picked = _as_slice(self.picked(tap))
        return matrix[picked].T if self.transposed else matrix[:, picked]

    def bias_columns(self, tap: Tap) -> np.ndarray | None:
        """(Hkv·Dh,): these elements of b."""
        if self.bias is None or self.bias.const_value is None:
            return None
        bias: np.ndarray = self.bias.const_value.numpy()
        return np.take(bias, self.picked(tap))


def _as_slice(indices: np.ndarray) -> slice | np.ndarray:
    """Indices in a row as a slice, by which a matrix is looked at and not copied."""
    first = int(indices[0])
    in_row = np.array_equal(indices, np.arange(first, first + indices.size))
    return slice(first, first + indices.size) if in_row else indices


def projection_of(tap: Tap, graphs: Sequence[ConcreteGraph]) -> Projection | None:
    """The projection that a tap begins with; None where something else computes its source."""
    source = tap.chain.source
    layout: SourceLayout = "batch-first" if tap.rows else tap.layout.layout
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
    layout: SourceLayout,
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
    node: ir.Node, output: ir.Value, layout: SourceLayout, graphs: Sequence[ConcreteGraph]
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
    layout: SourceLayout,
    graphs: Sequence[ConcreteGraph],
) -> Projection | None:
    """Undoes a flattening of (B,N,D) to (B·N,D) before the product."""
    if layout != "flat":
        return Projection(x, product, output, weight, transposed, bias, layout)
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
    taps: dict[Operand, Tap]

    @property
    def kind(self) -> Literal["qkv", "kv", "qk", "qv"]:
        return _KINDS[tuple(self.members)]

    @property
    def merged(self) -> bool:
        return len({projection.product for projection in self.members.values()}) == 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many columns each member takes."""
        return tuple(p.picked(self.taps[which]).size for which, p in self.members.items())

    @property
    def in_order(self) -> bool:
        """Whether one MatMul holds exactly the members' columns, in the order of the members."""
        if not self.merged:
            return False
        columns = np.concatenate([p.picked(self.taps[w]) for w, p in self.members.items()])
        projection = next(iter(self.members.values()))
        in_order = np.array_equal(columns, np.arange(projection.width))
        return in_order and projection.product.op_type == "MatMul"

    @property
    def order(self) -> SourceLayout:
        """Whether rows of the shared input are batch-first or sequence-first."""
        return next(iter(self._orders), "batch-first")

    @property
    def _orders(self) -> set[SourceLayout]:
        """What the members' heads are made of; rows that go on whole stand in any order."""
        return {p.layout for which, p in self.members.items() if not self.taps[which].rows}

    @property
    def problem(self) -> str:
        """Why it cannot be merged; empty where it can, or is."""
        if self.merged:
            return ""
        if len(self._orders) > 1:
            return "the projections read their input in different orders of batch and sequence"
        own = {node for which in self.members for node in self.taps[which].chain.nodes}
        for which, projection in self.members.items():
            for value in self._inner(which, projection):
                users = {use.node for use in value.uses()} - _adders(projection)
                if value.is_graph_output() or not all(_goes_with(own, user) for user in users):
                    return (
                        f"the {which} projection is also used elsewhere "
                        f"({value.name}): merging would keep two copies of its weights"
                    )
        return ""

    def _inner(self, which: Operand, projection: Projection) -> list[ir.Value]:
        """The values from the product up to, and without, the tap."""
        chain = self.taps[which].chain
        values = [projection.product.outputs[0], projection.output]
        values += [output for node in chain.nodes[:-1] for output in node.outputs]
        return [value for value in values if value is not chain.end]

    def describe(self) -> ProjectionGroup:
        products = dict.fromkeys(p.product.name or "" for p in self.members.values())
        reason = ""
        if not self.merged:
            reason = self.problem or (
                f"{len(products)} separate products share one input: `attnport fuse` merges them"
            )
        return ProjectionGroup(
            name=f"{self.site.name}/{self.kind}",
            attention=self.site.name,
            kind=self.kind,
            nodes=tuple(products),
            sizes=self.sizes,
            merged=self.merged,
            reason=reason,
        )


def _goes_with(own: set[ir.Node], node: ir.Node, depth: int = 0) -> bool:
    """Whether the node is one of those, or a Shape of which nothing but those make use."""
    if node in own:
        return True
    if depth > 12 or (depth == 0 and node.op_type != "Shape"):
        return False
    return not any(value.is_graph_output() for value in node.outputs) and all(
        _goes_with(own, use.node, depth + 1) for value in node.outputs for use in value.uses()
    )


def _adders(projection: Projection) -> set[ir.Node]:
    """The node that adds the bias, which goes with the product."""
    node = projection.output.producer()
    return {node} if node is not None and projection.bias is not None else set()


def find_groups(sites: Sequence[AttentionSite], graphs: Sequence[ConcreteGraph]) -> list[Group]:
    """For each attention the projections that share an input, where there are two or three."""
    groups = []
    for site in sites:
        taps = find_taps(site, graphs)
        by_input: dict[ir.Value, dict[Operand, Projection]] = {}
        for which, tap in taps.items():
            projection = projection_of(tap, graphs)
            if projection is not None:
                by_input.setdefault(projection.x, {})[which] = projection
        groups += [Group(site, found, taps) for found in by_input.values() if len(found) > 1]
    return groups
