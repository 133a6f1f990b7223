"""The TensorRT copy of a rank's graph: a collective of TensorRT's own in place of each sum.

TensorRT's parser imports a node `DistCollective` as an IDistCollectiveLayer, which runs over NCCL.
The attributes are those that its importer reads (onnx-tensorrt, and Polygraphy's `multi-device
shard`, which writes them). onnx's checker and ONNX Runtime refuse the node.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from attnport.export.shard.joint_model import RANK_OPERATOR
from attnport.export.shard.reductions import DOMAIN, OPERATOR

COLLECTIVE = "DistCollective"


def with_collectives(content: bytes, ranks: int) -> bytes:
    """Replaces the sums of a serialized graph by TensorRT's collectives.

    Args:
        content: The graph; its weights may lie in a file of their own.
        ranks: Over how many ranks.
    """
    model = onnx.load_model_from_string(content)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type == OPERATOR:
            made = _collective(node.input[0], node.output[0], ranks, "all_reduce", "sum")
            made.name = node.name  # by which the plan's layers are known
            nodes.append(made)
        elif node.domain == DOMAIN and node.op_type == RANK_OPERATOR:
            nodes += _own_number(model.graph, node.output[0], ranks)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    kept = [one for one in model.opset_import if one.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return bytes(model.SerializeToString())


def _own_number(graph: onnx.GraphProto, name: str, ranks: int) -> list[onnx.NodeProto]:
    """A scalar that is each rank's own number: rank 0 scatters 0, 1, … over all."""
    every, own, wide, axis = (f"{name}.{word}" for word in ("every", "own", "wide", "axis"))
    graph.initializer.append(numpy_helper.from_array(np.arange(ranks, dtype=np.int32), every))
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), axis))
    return [
        _collective(every, own, ranks, "scatter", "none", root=0),
        helper.make_node("Cast", [own], [wide], name=wide, to=onnx.TensorProto.INT64),
        helper.make_node("Squeeze", [wide, axis], [name], name=name),
    ]


def _collective(
    source: str, result: str, ranks: int, operation: str, reduce_op: str, root: int = -1
) -> onnx.NodeProto:
    made = helper.make_node(
        COLLECTIVE,
        [source],
        [result],
        name=result,
        collective_operation=operation,
        reduce_op=reduce_op,
        root=root,
        nb_rank=ranks,
        group_size=0,
    )
    every = helper.make_attribute("groups", [], attr_type=onnx.AttributeProto.INTS)
    made.attribute.append(every)
    return made
