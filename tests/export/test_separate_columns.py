"""A product whose columns are parted unequally, as a product for each part."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import shape_inference
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import WIDTH, Net, op_types, to_ir

from attnport.export.separate_columns import count_separable, separate_columns


def parted(sizes: list[int], *, bias: bool = False, returned: bool = False) -> onnx.ModelProto:
    """Norms of queries and keys, (B,N,E) each, and the values as they are."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    product = net.op("MatMul", x, net.weight(WIDTH, sum(sizes)))
    rows = net.op("Add", product, net.vector(sum(sizes))) if bias else product
    parts = net.ops("Split", len(sizes), rows, sizes, axis=2)
    outputs = [net.op("Softmax", part, axis=-1) for part in parts]
    return net.model(*outputs, *([product] if returned else []))


def separated(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    lowered = to_ir(shape_inference.infer_shapes(model))
    counted = count_separable(lowered.graph)
    changed = separate_columns(lowered.graph, ".part").changed
    assert changed == counted
    proto = ir.serde.serialize_model(lowered)
    onnx.checker.check_model(proto, full_check=True)
    return proto, changed


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_for_each_part(bias: bool) -> None:
    model = parted([32, 16, 16], bias=bias)
    lowered, changed = separated(model)
    assert changed == 1
    assert op_types(lowered).count("MatMul") == 3
    assert "Split" not in op_types(lowered)
    assert_same_numbers(model, lowered, {"x": normal((2, 5, WIDTH))})


def test_the_first_product_keeps_its_name_and_the_others_say_of_which_they_are_part() -> None:
    model = parted([32, 16, 16])
    (name,) = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    lowered, _ = separated(model)
    found = [node.name for node in lowered.graph.node if node.op_type == "MatMul"]
    assert found == [name, f"{name}.part1", f"{name}.part2"]


def test_the_weight_stands_in_the_file_once() -> None:
    model = parted([32, 16, 16])
    lowered, _ = separated(model)
    weights = [list(c.dims) for c in lowered.graph.initializer if len(c.dims) == 2]
    assert weights == [[WIDTH, 64]]


def test_equal_parts_stay_one_product() -> None:
    assert separated(parted([32, 32, 32]))[1] == 0


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_that_is_read_elsewhere_stays(bias: bool) -> None:
    assert separated(parted([32, 16, 16], bias=bias, returned=True))[1] == 0
