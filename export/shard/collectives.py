"""The TensorRT copy of a rank's graph: a collective of TensorRT's own in place of each sum.

TensorRT's parser imports a node `DistCollective` as an IDistCollectiveLayer, which runs over NCCL.
The attributes are those that its importer reads (onnx-tensorrt, and Polygraphy's `multi-device
shard`, which writes them). onnx's checker and ONNX Runtime refuse the node.
"""

from __future__ import annotations

import onnx

from attnport.export.shard.reductions import DOMAIN, OPERATOR

COLLECTIVE = "DistCollective"


def with_collectives(content: bytes, ranks: int) -> bytes:
    """Replaces the sums of a serialized graph by TensorRT's collectives.

    Args:
        content: The graph; its weights may lie in a file of their own.
        ranks: Over how many ranks.
    """
    model = onnx.load_model_from_string(content)
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type == OPERATOR:
            node.CopyFrom(_collective(node, ranks))
    kept = [one for one in model.opset_import if one.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return bytes(model.SerializeToString())


def _collective(node: onnx.NodeProto, ranks: int) -> onnx.NodeProto:
    made = onnx.helper.make_node(
        COLLECTIVE,
        list(node.input),
        list(node.output),
        name=node.name,
        collective_operation="all_reduce",
        reduce_op="sum",
        root=-1,
        nb_rank=ranks,
        group_size=0,
    )
    every = onnx.helper.make_attribute("groups", [], attr_type=onnx.AttributeProto.INTS)
    made.attribute.append(every)
    return made
