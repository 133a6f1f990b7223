"""Lowering for ONNX Runtime: masks of all heads are added, and made once for all layers.

    Softmax(Where(mask, scores, -inf))   ->   Softmax(Add(scores, Where(mask, 0, -inf)))

TensorRT wants the first. ONNX Runtime 1.32 on the CPU takes three quarters of the time of Q·Kᵀ for
it (150 µs of (1,8,128,128), one thread), and a quarter of that for the sum; the second Where is as
small as the mask, and ONNX Runtime joins those of all layers.

Requires: shapes have been inferred; scores in fp32, which do not overflow.
Ensures: the same numbers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


def add_masks(graph: ir.Graph) -> PassRecord:
    """Adds every mask that is the same for all heads, in place."""
    changed = sum(_add(graph, node) for node in list(graph))
    return PassRecord(name="add_masks", changed=changed)


def _add(graph: ir.Graph, node: ir.Node) -> bool:
    if node.op_type != "Where" or node.domain or not _only_a_softmax_reads(node.outputs[0]):
        return False
    mask, *branches = node.inputs
    hides = [_is_minus_infinity(value) for value in branches]
    scores = branches[hides.index(False)] if sum(hides) == 1 else None
    if scores is None or mask is None or not _is_of_all_heads(mask):
        return False
    if scores.dtype != ir.DataType.FLOAT or scores.shape is None or len(scores.shape) != 4:
        return False
    writer = GraphWriter(graph, f"/{str(node.name).strip('/')}")
    zero = writer.scalar(0.0, ir.DataType.FLOAT)
    chosen = [value if hidden else zero for value, hidden in zip(branches, hides, strict=True)]
    bias = writer.op("Where", [mask, *chosen], "bias", dtype=ir.DataType.FLOAT)
    bias.shape = mask.shape
    total = writer.op("Add", [scores, bias], "added", dtype=ir.DataType.FLOAT)
    total.shape = node.outputs[0].shape
    writer.insert_before(node)
    node.outputs[0].replace_all_uses_with(total)
    graph.remove(node, safe=True)
    return True


def _only_a_softmax_reads(value: ir.Value) -> bool:
    users = [use.node for use in value.uses()]
    return len(users) == 1 and users[0].op_type == "Softmax" and not value.is_graph_output()


def _is_of_all_heads(mask: ir.Value) -> bool:
    """Whether (B|1,1,N|1,T), or of fewer axes."""
    return mask.shape is not None and (len(mask.shape) < 3 or mask.shape[-3] == 1)


def _is_minus_infinity(value: ir.Value | None) -> bool:
    known = value.const_value if value is not None else None
    return known is not None and known.size == 1 and bool(np.isneginf(known.numpy()).all())
