"""Whether a static cache's input and output may be one buffer in a graph.

They may where the new rows' write is the only reader of the input: whatever else read it could find
the new rows there before their time.
"""

from __future__ import annotations

from pathlib import Path

from attnport.engines.decoding.layout import DecodingLayout
from attnport.errors import GraphError

_WRITES = ("TensorScatter", "ScatterND")


def why_not_in_place(model_path: Path, layout: DecodingLayout) -> str:
    """What forbids it; "" where nothing does.

    Args:
        model_path: The ONNX file; its weights are not read.
        layout: The parts of its graph.

    Raises:
        GraphError: If the file is not a whole ONNX file.
    """
    import onnx

    try:
        graph = onnx.load(model_path, load_external_data=False).graph
    except Exception as err:  # protobuf's errors derive from Exception alone
        raise GraphError(f"{model_path} is not a whole ONNX file ({err}): export again") from err
    for cache in layout.caches:
        readers = [node for node in graph.node if cache.input.name in node.input]
        if len(readers) != 1 or readers[0].op_type not in _WRITES:
            names = ", ".join(f"{node.op_type} {node.name!r}" for node in readers) or "no node"
            return f"{cache.input.name!r} is read by {names}, and not by one write of rows alone"
        if list(readers[0].output) != [cache.output.name]:
            return f"{cache.output.name!r} is not what {readers[0].name!r} writes"
    return ""
