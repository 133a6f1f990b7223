"""The graph of a bundle in the form that one kind of engine runs best.

`model.onnx` stays as it is: the lowered graph is made when an engine is opened, refers to the same
file of weights, and lives in memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.engines import libraries
from attnport.engines.lower_for_cpu import lower_for_cpu
from attnport.engines.lowered_graph import (
    LoweredAttention,
    LoweredGraph,
    is_restampable,
    serialized,
)
from attnport.engines.lowering_table import TABLES, Situation, choose_form
from attnport.export.bundle import Bundle
from attnport.export.records import AttentionInfo

if TYPE_CHECKING:
    import onnx_ir as ir

_OPERATOR_OPSET = 23
_NO_OPERATOR = (
    "the operator cannot say what it does: its mask sets hidden scores to a number, or its queries "
    "and values are of two dtypes"
)


def lower_bundle(bundle: Bundle, kind: str) -> LoweredGraph:
    """Gives every attention the form that the kind's table says.

    Args:
        bundle: The exported model; its `model.onnx` is not changed.
        kind: "ort-cpu", "ort-cuda" or "ort-tensorrt".

    Raises:
        GraphError: If the graph cannot be read.
    """
    if kind == "ort-cpu":
        return lower_for_cpu(bundle)
    if len(TABLES[kind]) == 1:
        (rule,) = TABLES[kind]
        names = [info.name for info in bundle.manifest.attentions]
        same = [LoweredAttention(attention=n, form=rule.form, reason=rule.reason) for n in names]
        return LoweredGraph(None, tuple(same))
    return _lowered(bundle, kind)


def _lowered(bundle: Bundle, kind: str) -> LoweredGraph:
    from attnport.engines.lower_to_mha import multi_head_attention_from_operator, rows_of
    from attnport.export.onnx_file import load_onnx
    from attnport.export.passes import inspect_graph, run_passes

    model = load_onnx(bundle.model_path)
    infos = inspect_graph(model.graph, bundle.axes).attentions
    restampable = model.opset_imports[""] >= _OPERATOR_OPSET or is_restampable(model)
    run_passes(model, bundle.axes, form="attention")
    operators = _operators(model, bundle)
    version = _ort_version()
    done = [_left(kind, info, bundle.dtype, version) for info in infos if not info.rewritable]
    for info in (info for info in infos if info.rewritable):
        node = operators.get(info.name)
        if node is None:
            done.append(LoweredAttention(attention=info.name, form="pattern", reason=_NO_OPERATOR))
            continue
        has_rows = all(rows_of(value) is not None for value in node.inputs[:3])
        at = Situation(info, bundle.dtype, has_rows, restampable, version)
        rule = choose_form(kind, at)
        if rule.form == "pattern":
            # The rules that leave one speak of the whole graph: the operator is all or nothing.
            return LoweredGraph(None, _all_left(infos, rule.reason))
        name = str(node.name)
        if rule.form == "multi-head-attention":
            name = multi_head_attention_from_operator(model, node, info)
        done.append(
            LoweredAttention(attention=info.name, form=rule.form, reason=rule.reason, node=name)
        )
    if not any(one.node for one in done):
        return LoweredGraph(None, _in_order(done, infos))
    if any(one.form == "attention" for one in done):
        model.opset_imports[""] = max(model.opset_imports[""], _OPERATOR_OPSET)
    return LoweredGraph(serialized(model), _in_order(done, infos))


def _operators(model: ir.Model, bundle: Bundle) -> dict[str, ir.Node]:
    """The operator that each attention has become, by the attention's name."""
    from attnport.export.passes import inspect_graph

    nodes = {node.name: node for node in model.graph if node.op_type == "Attention"}
    return {
        info.name: nodes[name]
        for info in inspect_graph(model.graph, bundle.axes).attentions
        for name in info.nodes
        if name in nodes and not nodes[name].domain
    }


def _in_order(
    done: Sequence[LoweredAttention], infos: Sequence[AttentionInfo]
) -> tuple[LoweredAttention, ...]:
    order = {info.name: number for number, info in enumerate(infos)}
    return tuple(sorted(done, key=lambda one: order[one.attention]))


def _left(
    kind: str, info: AttentionInfo, dtype: str, version: tuple[int, ...]
) -> LoweredAttention:
    rule = choose_form(kind, Situation(info, dtype, False, False, version))
    reason = f"{rule.reason} ({info.reason})" if info.reason else rule.reason
    return LoweredAttention(attention=info.name, form=rule.form, reason=reason)


def _all_left(infos: Sequence[AttentionInfo], reason: str) -> tuple[LoweredAttention, ...]:
    return tuple(LoweredAttention(attention=i.name, form="pattern", reason=reason) for i in infos)


def _ort_version() -> tuple[int, ...]:
    numbers = libraries.version("onnxruntime").split("+")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())
