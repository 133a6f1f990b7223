"""Lowering for ONNX Runtime: GELU's factors in the order that its fusion knows.

    x · (0.5 · (1 + Erf(x/√2)))   ->   (x · (1 + Erf(x/√2))) · 0.5

torch.onnx writes the first at opset 18, and ONNX Runtime 1.32 makes one kernel, with the bias
before it, of the second alone (onnxruntime/core/optimizer/gelu_fusion.cc). Halving is exact, so
the numbers are the same to the last bit, short of underflow.

Requires: nothing.
Ensures: the same numbers; the nodes keep their places and names.
"""

from __future__ import annotations

import onnx_ir as ir

from attnport.export.records import PassRecord


def reorder_gelus(graph: ir.Graph) -> PassRecord:
    """Moves the half of every GELU to its end, in place."""
    changed = sum(_reorder(node) for node in graph)
    return PassRecord(name="gelu_order", changed=changed)


def has_gelus(graph: ir.Graph) -> bool:
    """Whether there is anything to do."""
    return any(_factors(node) is not None for node in graph)


def _reorder(outer: ir.Node) -> bool:
    found = _factors(outer)
    if found is None:
        return False
    x, inner, half, risen = found
    inner.replace_input_with(0, x)
    inner.replace_input_with(1, risen)
    outer.replace_input_with(0, inner.outputs[0])
    outer.replace_input_with(1, half)
    return True


def _factors(outer: ir.Node) -> tuple[ir.Value, ir.Node, ir.Value, ir.Value] | None:
    """x, the inner product, its half and its 1 + Erf(x/…), if the node is such a GELU."""
    for x, product in _ways(outer):
        inner = product.producer()
        if inner is None or len(product.uses()) != 1 or product.is_graph_output():
            continue
        for half, risen in _ways(inner):
            if _is_number(half, 0.5) and _grows_from(risen, x):
                return x, inner, half, risen
    return None


def _ways(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """The factors of a Mul, both ways round; none of another node."""
    if node.op_type != "Mul" or node.domain:
        return []
    left, right = node.inputs
    assert left is not None
    assert right is not None
    return [(left, right), (right, left)]


def _grows_from(value: ir.Value, x: ir.Value) -> bool:
    """Whether it is 1 + Erf(x/c) or 1 + Erf(x·c)."""
    add = value.producer()
    if add is None or add.op_type != "Add":
        return False
    erf = next(
        (p for i in add.inputs if i is not None and (p := i.producer()) and p.op_type == "Erf"),
        None,
    )
    scaled = erf.inputs[0].producer() if erf is not None and erf.inputs[0] is not None else None
    return (
        scaled is not None
        and scaled.op_type in ("Div", "Mul")
        and x in scaled.inputs
        and any(i is not None and _is_number(i, 1.0) for i in add.inputs)
    )


def _is_number(value: ir.Value, number: float) -> bool:
    known = value.const_value
    return known is not None and known.size == 1 and float(known.numpy().item()) == number
