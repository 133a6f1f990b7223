"""Lowering: a transposition of a transposition is one, or none where it undoes the first.

Requires: nothing.
Ensures: the same numbers; what else reads the first transposition keeps it.
"""

from __future__ import annotations

import onnx_ir as ir

from attnport.export.graph_writer import GraphWriter
from attnport.export.records import PassRecord


def cancel_transposes(graph: ir.Graph) -> PassRecord:
    """Joins every pair, in place; a chain becomes one."""
    changed = sum(_join(graph, node) for node in list(graph))
    return PassRecord(name="cancel_transposes", changed=changed)


def _join(graph: ir.Graph, node: ir.Node) -> bool:
    second = _permutation(node)
    source = node.inputs[0] if node.inputs else None
    before = source.producer() if source is not None else None
    first = _permutation(before) if before is not None else None
    if second is None or first is None or before is None or before.inputs[0] is None:
        return False
    joined = [first[axis] for axis in second]
    result = node.outputs[0]
    if joined == list(range(len(joined))):
        if result.is_graph_output() and not _may_be_renamed(before.inputs[0]):
            return False  # an output needs a node that makes it
        _replace(result, before.inputs[0])
    else:
        writer = GraphWriter(graph, f"/{str(node.name).strip('/')}")
        output = writer.op("Transpose", [before.inputs[0]], "joined", {"perm": joined})
        output.type, output.shape = result.type, result.shape
        writer.insert_before(node)
        _replace(result, output)
    graph.remove(node, safe=True)
    if not before.outputs[0].uses() and not before.outputs[0].is_graph_output():
        graph.remove(before, safe=True)
    return True


def _permutation(node: ir.Node) -> list[int] | None:
    """None where the node is no Transpose, or reverses axes of which it does not say the number."""
    if node.op_type != "Transpose" or node.domain:
        return None
    return list(node.attributes.get_ints("perm", ())) or None


def _may_be_renamed(value: ir.Value) -> bool:
    is_made = value.producer() is not None and not value.is_graph_output()
    return is_made


def _replace(old: ir.Value, new: ir.Value) -> None:
    was_output = old.is_graph_output()
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if was_output:
        new.type, new.shape = old.type, old.shape
        name, old.name = old.name, f"{old.name}_replaced"
        new.name = name
