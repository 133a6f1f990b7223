"""The ONNX operator Attention, rewritten as com.microsoft MultiHeadAttention.

B batch, N query tokens, T key tokens, H heads, Dh head size. Attention takes queries, keys and
values parted into heads, (B,H,N,Dh), and MultiHeadAttention as rows, (B,N,H·Dh): where the graph
has the rows, the transpositions on all four sides fall away.

The additive bias of MultiHeadAttention is (B|1,H|1,N,T) in the dtype of the queries; a bool mask
becomes 0 and minus infinity (contrib operator schema of onnxruntime 1.32).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from attnport.errors import InternalError
from attnport.export.records import AttentionInfo

DOMAIN = "com.microsoft"
_TO_HEADS = [0, 2, 1, 3]


def rows_of(value: ir.Value | None) -> ir.Value | None:
    """(B,N,H·Dh) of a value (B,H,N,Dh), where the graph has it; else None."""
    transpose = value.producer() if value is not None else None
    if transpose is None or transpose.op_type != "Transpose" or _perm(transpose) != _TO_HEADS:
        return None
    parted = transpose.inputs[0]
    reshape = parted.producer() if parted is not None else None
    if reshape is None or reshape.op_type != "Reshape":
        return None
    shape, rows = _constant(reshape.inputs[1]), reshape.inputs[0]
    if shape is None or len(shape) != 4 or shape[:2] != [0, 0]:
        return None
    # A zero copies a dimension, so the rows have the batch and the tokens in the same places; a
    # rank of 3 is all that is left to be the width.
    return rows if rows is not None and rows.shape is not None and len(rows.shape) == 3 else None


def multi_head_attention_from_operator(model: ir.Model, node: ir.Node, info: AttentionInfo) -> str:
    """Replaces the node, in place.

    Args:
        model: The model; the operator's domain is added to it.
        node: An Attention whose queries, keys and values have rows.
        info: What it is.

    Returns:
        The new node's name.

    Raises:
        InternalError: If the node is not one whose rows `rows_of` gives.
    """
    rows = [rows_of(value) for value in node.inputs[:3]]
    if None in rows or info.heads is None:
        raise InternalError(f"{node.name} has no rows to take: please report the model")
    query = rows[0]
    assert query is not None
    assert query.dtype is not None
    writer = _Writer(node, query.dtype)
    inputs: list[ir.Value | None] = [*rows]
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        inputs += [None, None, writer.bias(node.inputs[3])]
    attributes = {
        "num_heads": info.heads,
        "scale": node.attributes.get_float("scale"),
        "unidirectional": node.attributes.get_int("is_causal", 0),
    }
    name = f"{str(node.name).rpartition('/')[0]}/multi_head_attention"
    output = writer.op("MultiHeadAttention", inputs, name, attributes, domain=DOMAIN)
    output.type, output.shape = query.type, query.shape
    _replace_rows(node, output, writer, info)
    writer.insert()
    model.graph.remove(node, safe=True)
    model.opset_imports[DOMAIN] = 1
    return name


def _replace_rows(node: ir.Node, output: ir.Value, writer: _Writer, info: AttentionInfo) -> None:
    """Puts (B,N,H·Dh) where the heads were merged again, or parts it where they were not."""
    context = node.outputs[0]
    merged = _merged_rows(context)
    if merged is not None:
        merged.replace_all_uses_with(output, replace_graph_outputs=True)
        dead = merged.producer()
        assert dead is not None
        turned = dead.inputs[0]
        assert turned is not None
        transpose = turned.producer()
        assert transpose is not None
        assert dead.graph is not None
        dead.graph.remove([transpose, dead], safe=True)
        return
    shape = writer.integers([0, 0, info.heads or 0, -1])
    parted = writer.op("Reshape", [output, shape], f"{output.name}_parted")
    heads = writer.op("Transpose", [parted], f"{output.name}_heads", {"perm": _TO_HEADS})
    heads.type, heads.shape = context.type, context.shape
    context.replace_all_uses_with(heads, replace_graph_outputs=True)


def _merged_rows(context: ir.Value) -> ir.Value | None:
    """What Transpose and Reshape make of the context, if nothing else reads it on the way."""
    transpose = _only_user(context)
    if transpose is None or transpose.op_type != "Transpose" or _perm(transpose) != _TO_HEADS:
        return None
    reshape = _only_user(transpose.outputs[0])
    if reshape is None or reshape.op_type != "Reshape":
        return None
    shape = _constant(reshape.inputs[1])
    return reshape.outputs[0] if shape is not None and shape[:2] == [0, 0] else None


def _only_user(value: ir.Value) -> ir.Node | None:
    users = list(value.uses())
    return users[0].node if len(users) == 1 and not value.is_graph_output() else None


def _perm(node: ir.Node) -> list[int]:
    return list(node.attributes.get_ints("perm", []))


def _constant(value: ir.Value | None) -> list[int] | None:
    if value is None or value.const_value is None:
        return None
    return [int(number) for number in value.const_value.numpy().ravel()]


class _Writer:
    """Collects nodes that go before another one."""

    def __init__(self, before: ir.Node, dtype: ir.DataType) -> None:
        self._before, self._dtype = before, dtype
        self._nodes: list[ir.Node] = []
        assert before.graph is not None
        self._graph = before.graph
        self._prefix = str(before.name)

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or {}, domain=domain, name=name)
        node.outputs[0].name = name
        self._nodes.append(node)
        return node.outputs[0]

    def bias(self, mask: ir.Value) -> ir.Value:
        """The mask as (B|1,H|1,N,T) of numbers to add."""
        if mask.dtype == ir.DataType.BOOL:
            shown, hidden = self._number("shown", 0.0), self._number("hidden", -np.inf)
            mask_rank = len(mask.shape) if mask.shape is not None else 4
            bias = self.op("Where", [mask, shown, hidden], f"{self._prefix}_bias")
        else:
            mask_rank = len(mask.shape) if mask.shape is not None else 4
            bias = mask
        if mask_rank < 4:
            axes = self.integers(list(range(4 - mask_rank)))
            bias = self.op("Unsqueeze", [bias, axes], f"{self._prefix}_bias_4d")
        return bias

    def integers(self, numbers: list[int]) -> ir.Value:
        name = f"{self._prefix}_ints_{'_'.join(map(str, numbers))}"
        return self._constant(name, np.asarray(numbers, np.int64))

    def insert(self) -> None:
        self._graph.insert_before(self._before, self._nodes)

    def _number(self, name: str, number: float) -> ir.Value:
        return self._constant(f"{self._prefix}_{name}", np.asarray(number, self._dtype.numpy()))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        value = ir.val(name, const_value=ir.tensor(array, name=name))
        if name not in self._graph.initializers:
            self._graph.register_initializer(value)
        return self._graph.initializers[name]
