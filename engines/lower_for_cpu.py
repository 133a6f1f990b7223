"""The graph of a bundle as ONNX Runtime on the CPU is given it.

Long causal attentions are cut into chunks; all layers read their lengths from the inputs, so that
one mask of few nodes serves them all, and add it; GELUs and RMS norms stand as its fusions know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.axes import Axis
from attnport.engines.lowered_graph import (
    LoweredAttention,
    LoweredGraph,
    is_restampable,
    serialized,
)
from attnport.engines.lowering_table import Situation, causal_chunks, choose_form
from attnport.export.bundle import Bundle
from attnport.export.records import AttentionInfo

if TYPE_CHECKING:
    import onnx_ir as ir

    from attnport.export.concrete import ConcreteGraph


def lower_for_cpu(bundle: Bundle) -> LoweredGraph:
    """Lowers a graph for ONNX Runtime on the CPU.

    Raises:
        GraphError: If the graph cannot be read.
    """
    from attnport.export.onnx_file import load_onnx

    infos = bundle.manifest.attentions
    model = load_onnx(bundle.model_path)
    chunks = _cut(model, bundle) if _may_cut(bundle) else {}
    changed = _lighten(model, bundle.dtype) or max(chunks.values(), default=1) > 1
    done = tuple(_choice(bundle, info, chunks.get(info.name, 1)) for info in infos)
    return LoweredGraph(serialized(model) if changed else None, done)


def _lighten(model: ir.Model, dtype: str) -> bool:
    """Everything but the chunks; says whether there was anything to do."""
    import onnx_ir.passes.common as common

    from attnport.export.added_masks import add_masks
    from attnport.export.gelu_order import reorder_gelus
    from attnport.export.lighter_masks import widen_ranges
    from attnport.export.rms_division import divide_by_roots
    from attnport.export.share_lengths import share_lengths

    common.ShapeInferencePass()(model)
    records = [share_lengths(model.graph), widen_ranges(model.graph)]
    reduced = _reduce_bools(model)
    # In half precision ONNX Runtime casts every node to fp32 and back, and fuses less.
    if dtype == "float32":
        records += [pass_(model.graph) for pass_ in (reorder_gelus, divide_by_roots, add_masks)]
    return reduced or any(record.changed for record in records)


def _reduce_bools(model: ir.Model) -> bool:
    from attnport.export.lighter_masks import BOOL_MAXIMUM_OPSET, lose_negations, reduce_bools

    opset = model.opset_imports[""]
    if opset < BOOL_MAXIMUM_OPSET and (opset < 18 or not is_restampable(model)):
        return False
    if not reduce_bools(model.graph).changed:
        return False
    lose_negations(model.graph)
    model.opset_imports[""] = max(opset, BOOL_MAXIMUM_OPSET)
    return True


def _may_cut(bundle: Bundle) -> bool:
    """Whether some attention is purely causal, and some axis long enough."""
    infos = bundle.manifest.attentions
    longest = max((axis.opt for axis in bundle.axes.values()), default=1)
    static = [n for spec in bundle.manifest.inputs for n in spec.shape if isinstance(n, int)]
    hopeful = any(info.causal and info.mask == "none" for info in infos)
    return hopeful and causal_chunks(max([longest, *static])) > 1


def _cut(model: ir.Model, bundle: Bundle) -> dict[str, int]:
    """Cuts what is worth it, and says into how many chunks each attention is cut."""
    import onnx_ir.passes.common as common

    from attnport.export.asking_sizes import sizes_to_ask_at
    from attnport.export.chunk_causal import chunk_causal
    from attnport.export.concrete import ConcreteGraph

    infos = bundle.manifest.attentions
    common.ShapeInferencePass()(model)  # the chunks need the dtype of the queries
    asked = sizes_to_ask_at(model.graph, bundle.axes)
    graphs = [ConcreteGraph(model.graph, sizes) for sizes in asked]
    chunks = {info.name: _chunks(model.graph, info, graphs, bundle) for info in infos}
    chosen = {name: count for name, count in chunks.items() if count > 1}
    chunk_causal(model.graph, chosen, {info.name: info for info in infos})
    return chunks


def _chunks(
    graph: ir.Graph, info: AttentionInfo, graphs: Sequence[ConcreteGraph], bundle: Bundle
) -> int:
    from attnport.export.chunk_causal import find_causal_nodes

    nodes = find_causal_nodes(graph, info)
    if nodes is None:
        return 1
    shapes = [found.shape(nodes.query) for found in graphs]
    lengths = [shape[2] for shape in shapes if shape is not None and len(shape) == 4]
    if len(lengths) < len(graphs):
        return 1
    return causal_chunks(_usual_length(lengths, graphs, list(bundle.axes.values())))


def _usual_length(
    lengths: Sequence[int], graphs: Sequence[ConcreteGraph], axes: Sequence[Axis]
) -> int:
    """The opt of the axis that the queries lie along; their number where it is always the same."""
    for axis in axes:
        if [found.sizes.get(axis.name) for found in graphs] == list(lengths):
            return axis.opt
    return lengths[0] if len(set(lengths)) == 1 else 1


def _choice(bundle: Bundle, info: AttentionInfo, chunks: int) -> LoweredAttention:
    at = Situation(info, bundle.dtype, False, False, (), chunks)
    rule = choose_form("ort-cpu", at)
    reason = f"{chunks} chunks: {rule.reason}" if rule.form == "chunks" else rule.reason
    return LoweredAttention(attention=info.name, form=rule.form, reason=reason)
