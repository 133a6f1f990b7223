"""Faults of what is hidden: masks, dead rows and causality."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper
from tests.validate.mutants.graph_edit import Edit, Fault


def _masked(edit: Edit) -> onnx.NodeProto | None:
    """The Where that hides by a mask input, not by causality alone."""
    node = edit.node("/masked")
    return node if node is not None and node.op_type == "Where" else None


def mask_ignored(edit: Edit) -> bool:
    node = _masked(edit)
    if node is None:
        return False
    edit.bypass(node, 1)
    return True


def mask_inverted(edit: Edit) -> bool:
    node = _masked(edit)
    if node is None:
        return False
    node.input[1], node.input[2] = node.input[2], node.input[1]
    return True


def mask_shifted(edit: Edit) -> bool:
    """Every key takes the mask of the one before it, the first that of the last."""
    node = _masked(edit)
    if node is None:
        return False
    mask = node.input[0]
    source = next(one for one in edit.graph.node if mask in one.output)
    minus, zero, many = (edit.constant(np.array([n], np.int64)) for n in (-1, 0, 1 << 30))
    made = [
        helper.make_node("Slice", [mask, minus, many, minus], ["m.last"]),
        helper.make_node("Slice", [mask, zero, minus, minus], ["m.front"]),
        helper.make_node("Concat", ["m.last", "m.front"], ["m.rolled"], axis=-1),
    ]
    edit.insert_after(source, made, mask)
    return True


def mask_leaks(edit: Edit) -> bool:
    """Hidden scores become 0 in place of -inf."""
    node = _masked(edit)
    if node is None:
        return False
    node.input[2] = edit.like(0.0)
    return True


def mask_after_softmax(edit: Edit) -> bool:
    """Probabilities are hidden in place of scores, and no longer sum to 1."""
    node, softmax = _masked(edit), edit.node("/softmax")
    if node is None or softmax is None:
        return False
    visible = node.input[0]
    edit.bypass(node, 1)
    old = softmax.output[0]
    made = [helper.make_node("Where", [visible, old, edit.like(0.0)], ["m.hidden"])]
    edit.insert_after(softmax, made, old)
    return True


def mask_of_the_first_row(edit: Edit) -> bool:
    """Every batch row gets the mask of the first."""
    node = _masked(edit)
    if node is None:
        return False
    mask = node.input[0]
    source = next(one for one in edit.graph.node if mask in one.output)
    first = edit.constant(np.array([0], np.int64))
    edit.insert_after(
        source, [helper.make_node("Gather", [mask, first], ["m.first"], axis=0)], mask
    )
    return True


def dead_rows_unguarded(edit: Edit) -> bool:
    node = (
        edit.node("_alive") if edit.node("/output_alive") is None else edit.node("/output_alive")
    )
    if node is None or node.op_type != "Where":
        return False
    edit.bypass(node, 1)
    return True


def _causal(edit: Edit) -> onnx.NodeProto | None:
    node = edit.node("/causal")
    return node if node is not None and node.op_type == "GreaterOrEqual" else None


def causal_ignored(edit: Edit) -> bool:
    node = _causal(edit)
    if node is None:
        return False
    edit.after(node, "Or", edit.constant(np.array(True)))
    return True


def causal_off_by_one(edit: Edit) -> bool:
    """Token i sees token i + 1."""
    node = _causal(edit)
    if node is None:
        return False
    rows = next(one for one in edit.graph.node if node.input[0] in one.output)
    edit.after(rows, "Add", edit.constant(np.array(1, np.int64)))
    return True


def causal_without_itself(edit: Edit) -> bool:
    node = _causal(edit)
    if node is None:
        return False
    node.op_type = "Greater"
    return True


def causal_reversed(edit: Edit) -> bool:
    """Token i sees what follows, not what came before."""
    node = _causal(edit)
    if node is None:
        return False
    node.op_type = "LessOrEqual"
    return True


def wrong_corner(edit: Edit) -> bool:
    """Causality anchored at the first key, where queries stand at the end of the keys."""
    softmax, scores = edit.node("/softmax"), edit.node("/scores")
    if softmax is None or scores is None or edit.graph.name != "past":
        return False
    hidden = softmax.input[0]
    source = next(one for one in edit.graph.node if hidden in one.output)
    names = ["m.shape", "m.square", "m.lower", "m.visible"]
    made = [
        helper.make_node("Shape", [scores.output[0]], [names[0]], start=-2),
        helper.make_node(
            "ConstantOfShape", [names[0]], [names[1]],
            value=helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0]),
        ),
        helper.make_node("Trilu", [names[1]], [names[2]], upper=0),
        helper.make_node("Cast", [names[2]], [names[3]], to=onnx.TensorProto.BOOL),
        helper.make_node(
            "Where", [names[3], scores.output[0], edit.like(-math.inf)], ["m.cornered"]
        ),
    ]  # fmt: skip
    edit.insert_after(source, made, hidden)
    return True


MASK_FAULTS: dict[str, Fault] = {
    "mask ignored": mask_ignored,
    "mask inverted": mask_inverted,
    "mask shifted by one": mask_shifted,
    "mask hides by 0": mask_leaks,
    "mask after softmax": mask_after_softmax,
    "mask of the first batch row for all": mask_of_the_first_row,
    "dead rows unguarded": dead_rows_unguarded,
    "causality ignored": causal_ignored,
    "causality off by one": causal_off_by_one,
    "causality without the token itself": causal_without_itself,
    "causality reversed": causal_reversed,
    "causality at the wrong corner, N != T": wrong_corner,
}
