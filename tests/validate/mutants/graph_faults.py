"""Faults of a graph's structure: scale, softmax, heads, order of the projections.

Each takes an Edit and says whether it applied: a graph without a mask has none to get wrong.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper
from tests.validate.mutants.graph_edit import HEAD_SIZE, Edit, Fault, attribute
from tests.validate.mutants.mask_faults import MASK_FAULTS


def scaled(factor: float) -> Fault:
    """Scores times a factor, on top of the right scale."""

    def fault(edit: Edit) -> bool:
        scores = edit.node("/scores")
        if scores is None:
            return False
        edit.after(scores, "Mul", edit.like(factor))
        return True

    return fault


def wrong_axis(edit: Edit) -> bool:
    softmax = edit.node("/softmax")
    if softmax is None:
        return False
    attribute(softmax, "axis", -2)
    return True


def sigmoid(edit: Edit) -> bool:
    softmax = edit.node("/softmax")
    if softmax is None:
        return False
    softmax.op_type = "Sigmoid"
    del softmax.attribute[:]
    return True


def unnormalised(edit: Edit) -> bool:
    """Exponentials that are never divided by their sum."""
    softmax = edit.node("/softmax")
    if softmax is None:
        return False
    softmax.op_type = "Exp"
    del softmax.attribute[:]
    return True


def heads_reversed(edit: Edit) -> bool:
    context = edit.node("/context")
    if context is None:
        return False
    order = edit.constant(np.arange(4)[::-1].copy())
    edit.after(context, "Gather", order, axis=1)
    return True


def heads_interleaved(edit: Edit) -> bool:
    """Heads merged with the head innermost."""
    rows = edit.node("/context_rows")
    if rows is None or rows.op_type != "Transpose":
        return False
    attribute(rows, "perm", [0, 2, 3, 1])
    return True


def _split(edit: Edit) -> onnx.NodeProto | None:
    return edit.node("kv_split")


def keys_and_values_swapped(edit: Edit) -> bool:
    node = _split(edit)
    if node is None:
        return False
    key, value = node.output[-2], node.output[-1]
    node.output[-2], node.output[-1] = value, key
    return True


def split_in_another_order(edit: Edit) -> bool:
    node = _split(edit)
    if node is None or len(node.output) != 3:
        return False
    names = list(node.output)
    for place, name in enumerate((names[2], names[0], names[1])):
        node.output[place] = name
    return True


def queries_and_keys_swapped(edit: Edit) -> bool:
    node = _split(edit)
    if node is None or len(node.output) != 3:
        return False
    node.output[0], node.output[1] = node.output[1], node.output[0]
    return True


def size_frozen(edit: Edit) -> bool:
    """A Reshape that holds the sequence at one length."""
    for node in edit.of_type("Reshape"):
        shape = edit.weight(node.input[1])
        if shape is not None and len(shape) == 4 and shape[1] == 0:
            node.input[1] = edit.constant(np.array([0, 8, *shape[2:]], np.int64))
            return True
    return False


def batch_mixed(edit: Edit) -> bool:
    """A tenth of the first batch row in every context."""
    context = edit.node("/context")
    if context is None:
        return False
    raw = context.output[0]
    first = edit.constant(np.array([0], np.int64))
    made = [
        helper.make_node("Gather", [raw, first], ["m.row"], axis=0),
        helper.make_node("Mul", ["m.row", edit.like(0.3)], ["m.part"]),
        helper.make_node("Add", [raw, "m.part"], ["m.mixed"]),
    ]
    edit.insert_after(context, made, raw)
    return True


def kv_heads_tiled(edit: Edit) -> bool:
    """Grouped-query heads in the order 0 1 0 1 in place of 0 0 1 1."""
    if edit.graph.name != "past":
        return False
    context = edit.node("/context")
    if context is None:
        return False
    for place in (0, 1):
        name = context.input[place]
        source = next((one for one in edit.graph.node if name in one.output), None)
        if place == 1 and source is not None:
            order = edit.constant(np.array([0, 2, 1, 3]))
            tiled = helper.make_node("Gather", [name, order], ["m.tiled"], axis=1)
            edit.insert_after(source, [tiled], name)
    return True


def residual_dropped(edit: Edit) -> bool:
    for node in edit.of_type("Add"):
        if "x" in node.input and edit.of_type("LayerNormalization"):
            other = next(place for place, name in enumerate(node.input) if name != "x")
            edit.bypass(node, other)
            return True
    return False


def activation_dropped(edit: Edit) -> bool:
    relus = edit.of_type("Relu")
    if not relus:
        return False
    edit.bypass(relus[0])
    return True


GRAPH_FAULTS: dict[str, Fault] = {
    "scale missing": scaled(math.sqrt(HEAD_SIZE)),
    "scale squared (1/Dh)": scaled(1 / math.sqrt(HEAD_SIZE)),
    "scale doubled": scaled(2.0),
    "scale negated": scaled(-1.0),
    **MASK_FAULTS,
    "softmax over the wrong axis": wrong_axis,
    "sigmoid for softmax": sigmoid,
    "softmax not normalised": unnormalised,
    "heads reversed": heads_reversed,
    "heads merged innermost": heads_interleaved,
    "K and V swapped": keys_and_values_swapped,
    "Q and K swapped": queries_and_keys_swapped,
    "QKV split in another order": split_in_another_order,
    "a size frozen": size_frozen,
    "a batch row mixed into the others": batch_mixed,
    "kv heads tiled, not interleaved": kv_heads_tiled,
    "residual dropped": residual_dropped,
    "activation dropped": activation_dropped,
}
