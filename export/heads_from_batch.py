"""Pass: scores that change between three axes and four have four throughout.

    (B·H,N,T) -> Reshape (B,H,N,T) -> mask, Softmax -> Reshape (B·H,N,T) -> MatMul

BLOOM, DeBERTa and the older models of transformers multiply with the heads in the batch axis, and
mask or normalise with an axis of heads. Here the Reshapes move up to the queries, keys and values
and down to the context, where heads are made and merged, and fall away with them.

Requires: the graph at two or more concrete sizes.
Ensures: the same numbers. Scores with three axes throughout are left as they are: they are found so.

Letters as in `records`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph, constant_scalar
from attnport.export.graph_writer import Attributes, GraphWriter
from attnport.export.records import PassRecord

Graphs = Sequence[ConcreteGraph]

# What may stand between the product of queries and keys and the softmax, element by element.
_ELEMENTWISE = {
    "Add", "Cast", "Div", "Dropout", "Identity", "Max", "Min", "Mul", "Sub", "Tanh", "Where",
}  # fmt: skip
_BELOW = {"Cast", "Dropout", "Identity", "Reshape"}
_FURTHEST = 16
_LAST_TWO_TURNED = {3: [0, 2, 1], 4: [0, 1, 3, 2]}


def has_reshaped_scores(graph: ir.Graph) -> bool:
    """Whether the pass would look at the graph: a Reshape stands beside some softmax."""
    return any(_ways(node) is not None for node in graph if _is_softmax(node))


def heads_from_batch(graph: ir.Graph, graphs: Graphs) -> PassRecord:
    """Gives every such attention an axis of heads; the record says which."""
    notes = []
    for node in [node for node in graph if _is_softmax(node)]:
        ways = _ways(node)
        heads = _heads_of(ways, graphs) if ways is not None else None
        if ways is None or heads is None:
            continue
        try:
            _Lifting(graph, graphs, node, heads).apply(*ways)
        except _CannotLiftError as err:
            notes.append(f"{node.name}: left as it is: {err}")
        else:
            notes.append(f"{node.name}: its {heads} heads have an axis from the products on")
    changed = sum("left as it is" not in note for note in notes)
    return PassRecord(name="heads_from_batch", changed=changed, notes=tuple(notes))


class _CannotLiftError(Exception):
    """Why one attention keeps its three axes."""


def _is_softmax(node: ir.Node) -> bool:
    return node.op_type == "Softmax" and not node.domain


def _ways(softmax: ir.Node) -> tuple[list[ir.Node], list[ir.Node]] | None:
    """The nodes up to the product of Q and K, and down to that with V, if a Reshape is among them.

    Each way begins beside the softmax and ends with the product.
    """
    up = _way_up(softmax.inputs[0])
    down = _way_down(softmax.outputs[0])
    if up is None or down is None:
        return None
    return (up, down) if any(node.op_type == "Reshape" for node in (*up, *down)) else None


def _way_up(value: ir.Value | None, depth: int = 0) -> list[ir.Node] | None:
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth > _FURTHEST:
        return None
    if node.op_type == "MatMul":
        return (
            [node] if all(v is not None and v.const_value is None for v in node.inputs) else None
        )
    if node.op_type == "Reshape":
        ways = [_way_up(node.inputs[0], depth + 1)]
    elif node.op_type in _ELEMENTWISE:
        ways = [_way_up(v, depth + 1) for v in node.inputs]
    else:
        return None
    found = next((way for way in ways if way is not None), None)
    return [node, *found] if found is not None else None


def _way_down(value: ir.Value, depth: int = 0) -> list[ir.Node] | None:
    for node in dict.fromkeys(use.node for use in value.uses()):
        if node.domain or depth > _FURTHEST or node.inputs[0] is not value:
            continue
        if node.op_type == "MatMul":
            other = node.inputs[1]
            if other is not None and other.const_value is None:
                return [node]
        elif node.op_type in _BELOW:
            way = _way_down(node.outputs[0], depth + 1)
            if way is not None:
                return [node, *way]
    return None


def _heads_of(ways: tuple[list[ir.Node], list[ir.Node]], graphs: Graphs) -> int | None:
    """H, if every Reshape on the ways does nothing but part or join (B,H)."""
    found = {
        _heads_parted(node, graphs) for way in ways for node in way if node.op_type == "Reshape"
    }
    return found.pop() if len(found) == 1 else None


def _heads_parted(reshape: ir.Node, graphs: Graphs) -> int | None:
    """H of a Reshape between (B·H,…) and (B,H,…); None for any other."""
    found = {_heads_at(reshape, graph) for graph in graphs}
    return found.pop() if len(found) == 1 else None


def _heads_at(reshape: ir.Node, graph: ConcreteGraph) -> int | None:
    given = graph.shape(reshape.inputs[0]) if reshape.inputs[0] is not None else None
    made = graph.shape(reshape.outputs[0])
    if given is None or made is None:
        return None
    joined, parted = sorted((given, made), key=len)
    if (len(joined), len(parted)) != (3, 4) or joined[1:] != parted[2:]:
        return None
    return parted[1] if joined[0] == parted[0] * parted[1] else None


class _Lifting:
    """One attention, about to get its axis of heads."""

    def __init__(self, graph: ir.Graph, graphs: Graphs, softmax: ir.Node, heads: int) -> None:
        self._graph, self._graphs, self._softmax, self._heads = graph, graphs, softmax, heads
        self._writer = GraphWriter(graph, f"/{softmax.name}" if softmax.name else "/softmax")
        self._known: dict[ir.Value, ir.Value] = {}
        self._leading: ir.Value | None = None

    def apply(self, up: Sequence[ir.Node], down: Sequence[ir.Node]) -> None:
        """Writes the attention with four axes, and puts it in the old one's place."""
        softmax, product = self._softmax, down[-1]
        old = softmax.outputs[0]
        scores = self._lifted(up)
        weights = old
        if self._rank(old) == 3:
            weights = self._like(softmax, [scores], {"axis": -1})
            self._known[old] = weights
        before_product = GraphWriter(self._graph, self._writer.prefix)
        above, self._writer = self._writer, before_product
        context = product.outputs[0]
        lifted = None
        if self._rank(context) == 3:
            operands = [self._parted(v) for v in product.inputs if v is not None]
            lifted = self._like(product, operands)
            self._put(lifted, context)
        above.insert_before(softmax)
        if weights is old:
            softmax.replace_input_with(0, scores)
        else:
            self._put(weights, old)
        before_product.insert_before(product)
        self._graph.sort()

    def _lifted(self, way: Sequence[ir.Node]) -> ir.Value:
        """What the first node of a way up computes, with four axes."""
        node, output = way[0], way[0].outputs[0]
        if node.op_type == "MatMul":
            if self._rank(output) == 4:
                return output
            return self._like(node, [self._parted(v) for v in node.inputs if v is not None])
        inner, before = self._lifted(way[1:]), way[1].outputs[0]
        if node.op_type == "Reshape":
            return inner
        if inner is before:
            return output
        three = self._rank(output) == 3
        inputs = [
            inner if v is before else self._aligned(v) if three and v is not None else v
            for v in node.inputs
        ]
        return self._like(node, inputs)

    def _aligned(self, value: ir.Value) -> ir.Value:
        """What is combined with (B·H,N,T), as it is with (B,H,N,T)."""
        if self._rank(value) < 3:
            return value
        if all(graph.shape(value)[0] == 1 for graph in self._graphs):  # type: ignore[index]
            return self._writer.unsqueeze(value, [0], "with_heads")
        return self._parted(value)

    def _parted(self, value: ir.Value) -> ir.Value:
        """(B·H,…) as (B,H,…): from where the two were joined, or by a Reshape."""
        if value not in self._known:
            self._known[value] = self._undone(value) or self._reshaped(value)
        return self._known[value]

    def _undone(self, value: ir.Value) -> ir.Value | None:
        """The value with its axes parted further up, if only movement and factors stand between."""
        node = value.producer()
        if node is None or node.domain or node.inputs[0] is None:
            return None
        if node.op_type == "Reshape" and _heads_parted(node, self._graphs) == self._heads:
            if self._rank(node.inputs[0]) != 4:
                return None
            if self._leading is None:
                self._leading = self._writer.sizes(node.inputs[0], 0, 2, "batch_and_heads")
            return node.inputs[0]
        if node.op_type == "Transpose" and _perm(node) == _LAST_TWO_TURNED[3]:
            inner = self._known_or_undone(node.inputs[0])
            turned = {"perm": _LAST_TWO_TURNED[4]}
            return self._like(node, [inner], turned) if inner is not None else None
        if node.op_type in ("Cast", "Identity", "Mul", "Div"):
            if any(constant_scalar(other) is None for other in node.inputs[1:]):
                return None
            inner = self._known_or_undone(node.inputs[0])
            return self._like(node, [inner, *node.inputs[1:]]) if inner is not None else None
        return None

    def _known_or_undone(self, value: ir.Value) -> ir.Value | None:
        return self._known.get(value) or self._undone(value)

    def _reshaped(self, value: ir.Value) -> ir.Value:
        if self._rank(value) != 3 or self._leading is None:
            raise _CannotLiftError(f"how {value.name} holds its heads could not be told")
        for graph in self._graphs:
            shape = graph.shape(value)
            if shape is None or shape[0] % self._heads:
                raise _CannotLiftError(f"{value.name} does not hold {self._heads} heads")
        last = self._writer.sizes(value, 1, 3, "last_axes")
        return self._reshape(value, [self._leading, last], "with_heads")

    def _put(self, four: ir.Value, old: ir.Value) -> None:
        """Puts a value of four axes in the place of one of three, for all who use it."""
        for use in list(old.uses()):
            if use.node.op_type == "Reshape" and _heads_parted(use.node, self._graphs):
                use.node.outputs[0].replace_all_uses_with(four, replace_graph_outputs=True)
        if not set(_live_users(old)) and not old.is_graph_output():
            return
        joined = self._writer.integers([-1])
        last = self._writer.sizes(four, 2, 4, "last_axes")
        back = self._reshape(four, [joined, last], "without_heads")
        old.replace_all_uses_with(back, replace_graph_outputs=True)

    def _reshape(self, value: ir.Value, parts: Sequence[ir.Value], name: str) -> ir.Value:
        shape = self._writer.op("Concat", parts, f"{name}_shape", {"axis": 0})
        return self._writer.op("Reshape", [value, shape], name, dtype=value.dtype)

    def _like(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
    ) -> ir.Value:
        """The same operation on other inputs."""
        kept = {name: attribute.value for name, attribute in node.attributes.items()}
        name = (node.name or node.op_type).rpartition("/")[2]
        dtype = node.outputs[0].dtype
        return self._writer.op(node.op_type, inputs, name, attributes or kept, dtype=dtype)

    def _rank(self, value: ir.Value) -> int:
        shapes = [graph.shape(value) for graph in self._graphs]
        if any(shape is None for shape in shapes):
            raise _CannotLiftError(f"the shape of {value.name} is not known")
        return len(shapes[0] or ())


def _live_users(value: ir.Value) -> Iterator[ir.Node]:
    """Those that something makes use of."""
    for use in value.uses():
        outputs = use.node.outputs
        if any(output.uses() or output.is_graph_output() for output in outputs):
            yield use.node


def _perm(node: ir.Node) -> list[int]:
    return list(node.attributes.get_ints("perm", []))
