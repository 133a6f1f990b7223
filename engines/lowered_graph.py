"""A graph that ONNX Runtime is given in place of `model.onnx`, and what became of its attentions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.engines.lowering_table import LoweredForm
from attnport.export.records import Record

if TYPE_CHECKING:
    import onnx_ir as ir

# Operators of the default domain whose meaning, not only their types, changed between opsets 18
# and 23 (the changelog of onnx 1.23).
_CHANGED = frozenset(
    {"AveragePool", "GroupNormalization", "Resize", "QuantizeLinear", "DequantizeLinear", "Pad"}
)


class LoweredAttention(Record):
    """What one attention is given to the engine as.

    Attributes:
        attention: Its name.
        form: The form.
        reason: Why this one.
        node: The node that computes it all; "" for the pattern.
    """

    attention: str
    form: LoweredForm
    reason: str
    node: str = ""


@dataclass(frozen=True)
class LoweredGraph:
    """A graph to open in place of `model.onnx`.

    Attributes:
        content: The serialized model; None where `model.onnx` itself is the right form.
        attentions: What became of each attention.
    """

    content: bytes | None
    attentions: tuple[LoweredAttention, ...]


def serialized(model: ir.Model) -> bytes:
    """The model, sorted and without dead nodes; its external weights are referred to."""
    import onnx_ir as ir
    import onnx_ir.passes.common as common

    model.graph.sort()
    common.RemoveUnusedNodesPass()(model)
    return bytes(ir.to_proto(model).SerializeToString())


def is_restampable(model: ir.Model) -> bool:
    """Whether a graph of opset 18 or more means the same at any opset up to 23."""
    return not any(not node.domain and node.op_type in _CHANGED for node in model.graph)
