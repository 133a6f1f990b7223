"""Lowering: a Squeeze says which axes it drops.

torch squeezes a size taken from Shape without naming axes. TensorRT for RTX 1.7 then finds at run
time which sizes are 1, with six kernels (a two-layer Llama: 27 kernels, else 21).

Requires: nothing.
Ensures: the same numbers; only where the shape is the same at all sizes is anything changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


def name_squeezed_axes(graph: ir.Graph, graphs: Sequence[ConcreteGraph]) -> PassRecord:
    """Names the axes, in place.

    Args:
        graph: The graph.
        graphs: The graph at two or more concrete sizes.
    """
    changed = 0
    for node in graph:
        if node.op_type != "Squeeze" or node.domain or "axes" in node.attributes:
            continue
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            continue
        shapes = {found.shape(node.inputs[0]) for found in graphs if node.inputs[0] is not None}
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is None or shape != (1,) or graph.opset_imports.get("", 1) < 13:
            continue  # only numbers out of shapes are safe to tell from axes that happen to be 1
        axes = GraphWriter(graph, "").integers([0])
        node.resize_inputs(2)
        node.replace_input_with(1, axes)
        changed += 1
    return PassRecord(name="name_squeezed_axes", changed=changed)
