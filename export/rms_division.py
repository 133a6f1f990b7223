"""Lowering for ONNX Runtime: RMS norms divide by the root, as its fusion knows them.

    x · Reciprocal(Sqrt(mean(x²) + ε))   ->   x / Sqrt(mean(x²) + ε)

torch.onnx writes the first for torch.rsqrt, and ONNX Runtime 1.32 makes one kernel of the second
(onnxruntime/core/optimizer/layer_norm_fusion.cc: SimplifiedLayerNormFusion) in place of seven. The
two differ by the rounding of the reciprocal, which the second does not do.

Requires: nothing.
Ensures: the same numbers, but for that rounding.
"""

from __future__ import annotations

import onnx_ir as ir

from attnport.export.records import PassRecord


def divide_by_roots(graph: ir.Graph) -> PassRecord:
    """Makes a division of every such product, in place; the product's name stays."""
    changed = sum(_divide(graph, node) for node in list(graph))
    return PassRecord(name="rms_division", changed=changed)


def _divide(graph: ir.Graph, node: ir.Node) -> bool:
    if node.op_type != "Mul" or node.domain:
        return False
    for x, inverse in (node.inputs, node.inputs[::-1]):
        root = _root_inverted(inverse)
        if x is None or root is None or not _is_of_squares(root, x):
            continue
        division = ir.node("Div", [x, root], name=node.name)
        result, output = node.outputs[0], division.outputs[0]
        output.name, output.type, output.shape = result.name, result.type, result.shape
        graph.insert_before(node, division)
        result.replace_all_uses_with(output, replace_graph_outputs=True)
        reciprocal = inverse.producer() if inverse is not None else None
        graph.remove([node, *([reciprocal] if reciprocal is not None else [])], safe=True)
        return True
    return False


def _root_inverted(value: ir.Value | None) -> ir.Value | None:
    """What the value is the reciprocal of, if that is a root and nothing else reads it."""
    reciprocal = _made_by(value, "Reciprocal")
    if value is None or reciprocal is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    root = reciprocal.inputs[0]
    return root if _made_by(root, "Sqrt") is not None else None


def _is_of_squares(root: ir.Value, x: ir.Value) -> bool:
    """Whether it is the root of the mean of x², and a number."""
    square_root = _made_by(root, "Sqrt")
    add = _made_by(square_root.inputs[0], "Add") if square_root is not None else None
    means = [_made_by(value, "ReduceMean") for value in add.inputs] if add is not None else []
    squares = [_made_by(mean.inputs[0], "Pow") for mean in means if mean is not None]
    return any(square is not None and square.inputs[0] is x for square in squares)


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None
