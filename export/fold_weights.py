"""Pass: what only moves a weight becomes the moved weight.

torch.nn's cross-attention cuts its packed projection by Split in the graph itself; a product with a
part of a constant is then not seen as a projection. Folded where the constant is not needed as a
whole elsewhere, so that the file does not grow.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import MOVEMENT, move
from attnport.export.records import PassRecord

# Up to this size a constant may be held twice: biases that are alike are often one initializer.
_SMALL_ELEMENTS = 1 << 14
# Expand and Tile would write a constant out larger than it is.
_FOLDED = MOVEMENT - {"Expand", "Tile"}


def fold_weights(graph: ir.Graph) -> PassRecord:
    """Folds movements of initializers, again and again until none is left."""
    concrete = ConcreteGraph(graph, {})
    changed = 0
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        if source is None or not _may_fold(node, source):
            continue
        assert source.const_value is not None
        moved = move(node, source.const_value.numpy(), concrete)
        if moved is None:
            continue
        for output, array in zip(node.outputs, moved, strict=False):
            _make_constant(graph, output, np.ascontiguousarray(array))
        graph.remove(node, safe=True)
        if not source.uses():
            graph.initializers.pop(str(source.name))
        changed += 1
    return PassRecord(name="fold_weights", changed=changed)


def _may_fold(node: ir.Node, source: ir.Value) -> bool:
    if node.domain or node.op_type not in _FOLDED or not source.is_initializer():
        return False
    if source.is_graph_input() or source.const_value is None or source.const_value.size < 2:
        return False
    if any(output.is_graph_output() for output in node.outputs):
        return False
    if source.const_value.size <= _SMALL_ELEMENTS:
        return all(v is None or v.const_value is not None for v in node.inputs[1:])
    others = {use.node for use in source.uses()} - {node}
    parts = node.op_type in ("Split", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze")
    return (not others and parts) or all(_is_cut(user) for user in (*others, node))


def _is_cut(node: ir.Node) -> bool:
    """Whether the node takes a fixed part of the constant: such users together hold it once."""
    fixed = all(v is None or v.const_value is not None for v in node.inputs[1:])
    return node.op_type in ("Slice", "Gather") and fixed


def _make_constant(graph: ir.Graph, output: ir.Value, array: np.ndarray) -> None:
    tensor = ir.tensor(array, name=output.name)
    value = ir.Value(
        name=output.name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )  # fmt: skip
    output.replace_all_uses_with(value)
    output.name = f"{output.name}.folded"
    graph.register_initializer(value)
