"""Products of flattened rows on three axes, and transpositions that cancel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.export.evaluation import assert_same_numbers, normal, run_in_ort
from tests.export.nets import AXES, WIDTH, Net, op_types, to_ir

from attnport.export.cancel_transposes import cancel_transposes
from attnport.export.passes import look_at
from attnport.export.unflatten_gemm import unflatten_gemm

X: list[int | str] = ["batch", "seq", WIDTH]


def unflattened(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    lowered = to_ir(model)
    changed = unflatten_gemm(lowered.graph, look_at(lowered.graph, AXES).graphs).changed
    proto = ir.serde.serialize_model(lowered)
    onnx.checker.check_model(proto, full_check=True)
    return proto, changed


def flat_product(*, bias: bool = True, columns: int = 24, **attributes: float) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", X)
    flat = net.op("Reshape", x, [-1, WIDTH])
    stored = (columns, WIDTH) if attributes.get("transB") else (WIDTH, columns)
    operands = [flat, net.weight(*stored)] + ([net.vector(columns)] if bias else [])
    product = net.op("Gemm", *operands, **attributes)
    lead = net.op("Shape", x, start=0, end=2)
    sizes = net.op("Concat", lead, [columns], axis=0)
    return net.model(net.op("Reshape", product, sizes))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [0, 1])
def test_a_product_between_reshapes(bias: bool, transposed: int) -> None:
    model = flat_product(bias=bias, transB=transposed)
    lowered, changed = unflattened(model)
    assert changed == 1
    assert "Gemm" not in op_types(lowered)
    assert "Reshape" not in op_types(lowered)
    assert_same_numbers(
        model, lowered, [{"x": normal((b, n, WIDTH))} for b, n in ((1, 1), (3, 5))]
    )


def test_the_product_keeps_its_name() -> None:
    model = flat_product()
    (name,) = [node.name for node in model.graph.node if node.op_type == "Gemm"]
    lowered, _ = unflattened(model)
    assert [node.name for node in lowered.graph.node if node.op_type == "MatMul"] == [name]


def test_a_scaled_product_is_left_alone() -> None:
    assert unflattened(flat_product(alpha=0.5))[1] == 0


def test_rows_that_come_back_in_another_shape_are_left_alone() -> None:
    net = Net()
    flat = net.op("Reshape", net.input("x", X), [-1, WIDTH])
    product = net.op("Gemm", flat, net.weight(WIDTH, 24))
    # (B·N,24) -> (B·N,2,12): three axes, and not those that were flattened.
    model = net.model(net.op("Reshape", product, [-1, 2, 12]))
    assert unflattened(model)[1] == 0


def test_a_product_that_something_else_reads_is_left_alone() -> None:
    net = Net()
    x = net.input("x", X)
    product = net.op("Gemm", net.op("Reshape", x, [-1, WIDTH]), net.weight())
    model = net.model(net.op("Reshape", product, net.op("Shape", x)), net.op("Neg", product))
    assert unflattened(model)[1] == 0


def cancelled(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    lowered = to_ir(model)
    changed = cancel_transposes(lowered.graph).changed
    proto = ir.serde.serialize_model(lowered)
    onnx.checker.check_model(proto, full_check=True)
    return proto, changed


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [([1, 0, 2], [1, 0, 2], 0), ([1, 2, 0], [2, 0, 1], 0), ([1, 2, 0], [1, 2, 0], 1)],
)
def test_pairs(first: list[int], second: list[int], left: int) -> None:
    net = Net()
    once = net.op("Transpose", net.op("Neg", net.input("x", X)), perm=first)
    model = net.model(net.op("Transpose", once, perm=second))
    lowered, changed = cancelled(model)
    assert changed == 1
    assert op_types(lowered).count("Transpose") == left
    feeds = {"x": normal((2, 5, WIDTH))}
    (before,), (after,) = run_in_ort(model, feeds), run_in_ort(lowered, feeds)
    assert np.array_equal(before, after)
    assert [o.name for o in lowered.graph.output] == [o.name for o in model.graph.output]


def test_the_first_stays_for_who_else_reads_it() -> None:
    net = Net()
    once = net.op("Transpose", net.input("x", X), perm=[1, 0, 2])
    back = net.op("Neg", net.op("Transpose", once, perm=[1, 0, 2]))
    lowered, changed = cancelled(net.model(back, net.op("Abs", once)))
    assert changed == 1
    assert op_types(lowered).count("Transpose") == 1


def test_an_output_that_is_an_input_again_keeps_its_nodes() -> None:
    net = Net()
    once = net.op("Transpose", net.input("x", X), perm=[1, 0, 2])
    lowered, changed = cancelled(net.model(net.op("Transpose", once, perm=[1, 0, 2])))
    assert changed == 0
    assert op_types(lowered).count("Transpose") == 2
