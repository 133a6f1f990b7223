"""Pass: where attention weights are returned as well, rows whose keys are all hidden give 0.

    dead    = ReduceMax(scores, -1) == -inf
    context = Where(dead, 0, weights · V);  returned = Where(dead, 0, weights)

No kernel fuses such an attention, so it is left as it is written, and a softmax of nothing but -inf
is NaN. The scores are asked, not the weights: a NaN that comes of overflow stays one.

Requires: sites found in this very graph, which is sorted afterwards.
Ensures: the specified result on dead rows, of the context and of what is made of the weights; the
same numbers elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord
from attnport.export.sites import AttentionSite


def guard_returned(graph: ir.Graph, sites: Sequence[AttentionSite]) -> PassRecord:
    """Guards every attention whose weights are used beside it and may be of dead rows."""
    changed = 0
    for site in sites:
        if site.problem or not (site.weights_returned and site.dead_rows) or site.sink:
            continue
        softmax = next((n for n in site.nodes if n.op_type == "Softmax"), None)
        if softmax is not None and not _has_guard(softmax):
            _guard(graph, site, softmax)
            changed += 1
    return PassRecord(name="guard_returned", changed=changed)


def _has_guard(softmax: ir.Node) -> bool:
    """Whether the probabilities are looked at for NaN already, or the scores for -inf."""
    readers = [use.node for use in softmax.outputs[0].uses()]
    scores = softmax.inputs[0]
    asked = [use.node.op_type for use in scores.uses()] if scores is not None else []
    return "ReduceMax" in asked or any(node.op_type == "IsNaN" for node in readers)


def _guard(graph: ir.Graph, site: AttentionSite, softmax: ir.Node) -> None:
    writer = GraphWriter(graph, f"/{site.name}")
    scores, weights = softmax.inputs[0], softmax.outputs[0]
    assert scores is not None
    dtype = scores.dtype or weights.dtype or ir.DataType.FLOAT
    largest = writer.reduce_max(scores, [-1], "score_largest")
    dead = writer.op("Equal", [largest, writer.scalar(-np.inf, dtype)], "rows_dead")
    writer.insert_before(softmax)
    inside = set(site.nodes)
    beside = [(node, at) for node, at in weights.uses() if node not in inside]
    _replace(graph, site, dead, weights, beside, "weights_guarded")
    _replace(
        graph,
        site,
        dead,
        site.context,
        [(node, at) for node, at in site.context.uses()],
        "context_guarded",
    )


def _replace(
    graph: ir.Graph,
    site: AttentionSite,
    dead: ir.Value,
    value: ir.Value,
    uses: Sequence[tuple[ir.Node, int]],
    name: str,
) -> None:
    """Lets those uses read the value, or 0 where the row is dead."""
    writer = GraphWriter(graph, f"/{site.name}")
    zero = writer.scalar(0.0, value.dtype or ir.DataType.FLOAT)
    guarded = writer.op("Where", [dead, zero, value], name)
    guarded.type, guarded.shape = value.type, value.shape
    for node, at in uses:
        node.replace_input_with(at, guarded)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = guarded
    writer.append()
