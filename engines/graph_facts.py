"""What an ONNX file says of its nodes that explains why TensorRT does or does not fuse them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import GraphError

if TYPE_CHECKING:
    import onnx


Shape = tuple[int | str | None, ...]

# Behind the name of a product whose columns a lowering makes by several: "/attn0/qkv.part1".
PART = ".part"
# A constant that a shape is read from holds a number for each dimension.
_LARGEST_SHAPE_BYTES = 1024


@dataclass(frozen=True)
class GraphFacts:
    """Facts about the nodes of one graph, by name.

    Attributes:
        op_types: The operator of each node.
        output_nodes: The nodes of which a result is an output of the graph.
        unit_batch_nodes: The nodes whose first result is known to be a single matrix: every
            dimension but the last two is a constant 1.
        shapes: The shape of each node's first result, as far as it is known: a size, the name of
            an axis, or None.
    """

    op_types: dict[str, str] = field(default_factory=dict)
    output_nodes: frozenset[str] = frozenset()
    unit_batch_nodes: frozenset[str] = frozenset()
    shapes: dict[str, Shape] = field(default_factory=dict)


def read_graph_facts(path: Path) -> GraphFacts:
    """Reads the facts of an ONNX file, without its external weights.

    Raises:
        GraphError: If the file is not a whole ONNX file.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as err:  # protobuf's errors derive from Exception alone
        raise GraphError(f"{path} is not a whole ONNX file ({err}): export again") from err
    if not model.graph.node:
        # A few stray bytes are a message of unknown fields to protobuf, and an empty graph.
        raise GraphError(f"{path} holds no graph: export again")
    _drop_weights(model)
    outputs = {output.name for output in model.graph.output}
    shapes = _inferred_shapes(model)
    nodes = model.graph.node
    return GraphFacts(
        op_types={node.name: node.op_type for node in nodes},
        output_nodes=frozenset(node.name for node in nodes if outputs.intersection(node.output)),
        unit_batch_nodes=frozenset(
            node.name for node in nodes if node.output and _is_matrix(shapes.get(node.output[0]))
        ),
        shapes={
            node.name: shapes[node.output[0]]
            for node in nodes
            if node.output and node.output[0] in shapes
        },
    )


def _drop_weights(model: onnx.ModelProto) -> None:
    """Empties the large constants: shapes depend on none, and inference would copy them."""
    for constant in model.graph.initializer:
        if constant.ByteSize() > _LARGEST_SHAPE_BYTES:
            for content in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                constant.ClearField(content)


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Shapes of the tensors as far as ONNX can infer them."""
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError):
        # Only an explanation is lost, and the builder will say what is wrong with the graph.
        graph = model.graph
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in value.type.tensor_type.shape.dim
        )
        for value in (*graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def _is_matrix(shape: Shape | None) -> bool:
    return shape is not None and len(shape) >= 3 and set(shape[:-2]) == {1}
