"""Pass: the ONNX Attention operator with a cache, key lengths or a window, as a plain operator.

    past_key, past_value    Concat before it; the present outputs are what the Concat gives
    causal with a past      a mask: key j is visible to query i where j <= i + past
    nonpad_kv_seqlen n      a mask: key j is visible where j < n, and, if causal, j <= i + n - N
    a window                a mask: -left <= j - i - offset <= right
    (B,N,H·Dh) operands     Reshape and Transpose to (B,H,N,Dh), and back after it

Requires: an opset that has the operator (23 and later).
Ensures: the same numbers (Attention-24 and -25 in the ONNX specification); what is left is an
operator of at most four inputs, of which causality is aligned to the first key, and of one output.
Neither ONNX Runtime 1.32 (present outputs without a past) nor TensorRT for RTX 1.7 (any second
output, key lengths) takes all of these.

Letters as in `records`; P past tokens, T = P + new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.expand_masks import ExpandedMasks
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import Form, PassRecord

_WINDOWS = ("left_window_size", "right_window_size")


def expand_operator(graph: ir.Graph, graphs: Sequence[ConcreteGraph], form: Form) -> PassRecord:
    """Expands every operator that needs it; the record says of the others why not.

    Args:
        graph: The graph, which is changed.
        graphs: The graph at two or more concrete sizes.
        form: What attentions are written as afterwards: the operator as a form may keep
            three-dimensional operands, and needs masks spelled out for every query.
    """
    changed, notes = 0, []
    for node in list(graph):
        if node.op_type != "Attention" or node.domain:
            continue
        expansion = _Expansion(graph, node, graphs, form)
        if not expansion.parts:
            continue
        problem = expansion.problem()
        if problem:
            notes.append(f"{_label(node)}: left as it is: {problem}")
            continue
        expansion.apply()
        changed += 1
        notes.append(f"{_label(node)}: {', '.join(expansion.parts)} written out")
    return PassRecord(name="expand_operator", changed=changed, notes=tuple(notes))


def _label(node: ir.Node) -> str:
    """What to call a node in words: its name, or what it computes."""
    return node.name or f"the Attention of {node.outputs[0].name}"


@dataclass(frozen=True)
class _Operand:
    """An operand as heads, (B,H,N,Dh), and whether it stood as (B,N,H·Dh)."""

    heads: ir.Value
    flat: bool


class _Expansion:
    """One operator, about to be written out."""

    def __init__(
        self, graph: ir.Graph, node: ir.Node, graphs: Sequence[ConcreteGraph], form: Form
    ) -> None:
        self.graph, self.node, self.graphs, self.form = graph, node, graphs, form
        inputs: list[ir.Value | None] = [*node.inputs, *[None] * 7]
        self.query, self.key, self.value, self.mask = inputs[:4]
        self.past = inputs[4:6]
        self.lengths = inputs[6]
        self.present = [*node.outputs, *[None] * 3][1:3]
        self.causal = bool(node.attributes.get_int("is_causal", 0))
        self.window = [node.attributes.get_int(name, -1) for name in _WINDOWS]
        self.writer = GraphWriter(graph, f"/{node.name or node.outputs[0].name}")
        self.parts = self._parts()

    def _parts(self) -> list[str]:
        """What is to be written out, in words."""
        found = {
            "the past": any(value is not None for value in self.past),
            "the present outputs": any(self._is_used(value) for value in self.present),
            "the key lengths": self.lengths is not None,
            "the window": max(self.window) >= 0,
            "three-dimensional operands": self.form == "pattern" and self._axes(self.query) == 3,
            "the mask's queries": self.form == "attention" and self._mask_has_one_query(),
            "the mask's last keys": self._mask_is_short(),
        }
        return [part for part, holds in found.items() if holds]

    @staticmethod
    def _is_used(value: ir.Value | None) -> bool:
        return value is not None and (bool(value.uses()) or value.is_graph_output())

    def _axes(self, value: ir.Value | None) -> int | None:
        shape = self._shape(value)
        return None if shape is None else len(shape)

    def _shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        return self.graphs[0].shape(value) if value is not None else None

    def _mask_has_one_query(self) -> bool:
        shape = self._shape(self.mask)
        return shape is not None and (len(shape) < 2 or shape[-2] == 1)

    def _mask_is_short(self) -> bool:
        """Whether the mask ends before the keys do; those after it are hidden (Attention-23)."""
        mask, keys = self._shape(self.mask), self._keys()
        return mask is not None and keys is not None and mask[-1:] not in ((1,), (keys,))

    def _keys(self) -> int | None:
        """T, at the first sizes."""
        shape, past = self._shape(self.key), self._shape(self.past[0])
        if shape is None or (self.past[0] is not None and past is None):
            return None
        return shape[-2] + (past[2] if past is not None else 0)

    def problem(self) -> str:
        """Why it is left as it is; empty where it is not."""
        if any(value is None for value in (self.query, self.key, self.value)):
            return "it lacks a query, key or value"
        if any(self._is_used(value) for value in self.node.outputs[3:]):
            return "its scores are used (qk_matmul_output), which only the operator itself gives"
        if (self.past[0] is None) != (self.past[1] is None):
            return "past_key and past_value must be given together"
        if self.lengths is not None and self.past[0] is not None:
            return "a past and nonpad_kv_seqlen exclude each other (Attention-24)"
        operands = (self.query, self.key, self.value)
        if any(self._axes(value) not in (3, 4) for value in operands):
            return "the number of axes of its query, key or value is not known: give shapes"
        if self.query is not None and self.query.dtype is None:
            return "the type of its query is not known: run shape inference on the file"
        return ""

    def apply(self) -> None:
        """Puts the plain operator in the old one's place."""
        query = self._heads(self.query, "q_num_heads", "query")
        key, value = self._cached(0, self.key, "key"), self._cached(1, self.value, "value")
        mask = self._mask(query.heads, key)
        inputs = [query.heads, key, value] if mask is None else [query.heads, key, value, mask]
        dtype = query.heads.dtype
        context = self.writer.op("Attention", inputs, "attention", self._attributes(), dtype)
        if query.flat:
            perm = {"perm": [0, 2, 1, 3]}
            rows = self.writer.op("Transpose", [context], "context_rows", perm)
            sizes = self.writer.integers([0, 0, self._context_width()])
            context = self.writer.op("Reshape", [rows, sizes], "context_merged", dtype=dtype)
        self.writer.insert_before(self.node)
        self.node.outputs[0].replace_all_uses_with(context, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)

    def _attributes(self) -> dict[str, int | float]:
        kept = self.node.attributes
        plain = self.causal and self._offset_is_zero()
        found: dict[str, int | float] = {"is_causal": int(plain)}
        if "scale" in kept:
            found["scale"] = kept.get_float("scale")
        if kept.get_float("softcap", 0.0):
            found["softcap"] = kept.get_float("softcap")
        if "softmax_precision" in kept:
            found["softmax_precision"] = kept.get_int("softmax_precision")
        return found

    def _context_width(self) -> int:
        """H·Dv, where the graph says it at every size."""
        widths = {(graph.shape(self.value) or (-1,))[-1] for graph in self.graphs if self.value}
        heads = self.node.attributes.get_int("q_num_heads", 0)
        shared = self.node.attributes.get_int("kv_num_heads", 0)
        width = widths.pop()
        return width // shared * heads if not widths and width > 0 and shared else -1

    def _heads(self, value: ir.Value | None, attribute: str, name: str) -> _Operand:
        """(B,N,H·Dh) -> (B,H,N,Dh); with four axes as it is."""
        assert value is not None
        if self._axes(value) == 4:
            return _Operand(value, flat=False)
        heads = self.node.attributes.get_int(attribute, 1)
        widths = {(graph.shape(value) or (-1,))[-1] for graph in self.graphs}
        width = widths.pop()
        size = -1 if widths or width < 0 else width // heads
        shape = self.writer.integers([0, 0, heads, size])
        reshaped = self.writer.op("Reshape", [value, shape], f"{name}_reshape")
        perm = {"perm": [0, 2, 1, 3]}
        turned = self.writer.op("Transpose", [reshaped], f"{name}_heads", perm, value.dtype)
        return _Operand(turned, flat=True)

    def _cached(self, number: int, new: ir.Value | None, name: str) -> ir.Value:
        """Keys or values of the past and the new ones, which are the present output as well."""
        operand = self._heads(new, "kv_num_heads", name)
        past, present, whole = self.past[number], self.present[number], operand.heads
        dtype = whole.dtype
        if past is not None:
            axis = {"axis": 2}
            whole = self.writer.op("Concat", [past, whole], f"{name}_present", axis, dtype)
        if present is not None and self._is_used(present):
            # An output of the graph that is its input as well is refused by most engines.
            given = whole
            if past is None:
                given = self.writer.op("Identity", [whole], f"{name}_present", None, dtype)
            present.replace_all_uses_with(given, replace_graph_outputs=True)
        return whole

    def _offset_is_zero(self) -> bool:
        return self.past[0] is None and self.lengths is None

    def _mask(self, query: ir.Value, key: ir.Value) -> ir.Value | None:
        """Everything that hides, but for plain causality, and what is added."""
        masks = ExpandedMasks(self.writer, query, key, self.past[0], self.lengths)
        causal = self.causal and not self._offset_is_zero()
        visible = masks.visible(causal=causal, window=self.window)
        given = self.mask
        if given is not None and self._mask_is_short():
            given = masks.padded(given, len(self._shape(given) or ()))
        mask = masks.combined(given, visible)
        return masks.spelled_out(mask) if mask is not None and self.form == "attention" else mask
