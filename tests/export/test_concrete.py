"""Shapes and data at concrete sizes, of whatever stands in a graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.export.evaluation import evaluate
from tests.export.nets import WIDTH, Net, lengths, positions, project, square, to_ir

from attnport.export.concrete import (
    ConcreteGraph,
    constant_array,
    constant_scalar,
    has_subgraph,
    static_scalar,
)

SIZES = {"batch": 2, "seq": 5}


def value_of(graph: ir.Graph, name: str) -> ir.Value:
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.name == name:
            return value
    return next(v for node in graph for v in node.outputs if v.name == name)


def concrete(net: Net, *names: str, **sizes: int) -> tuple[ConcreteGraph, list[ir.Value]]:
    graph = to_ir(net.model(*names)).graph
    return ConcreteGraph(graph, {**SIZES, **sizes}), [value_of(graph, name) for name in names]


def test_symbols_become_numbers() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    product = project(net, x, 7)
    turned = net.op("Transpose", product, perm=[0, 2, 1])
    graph, values = concrete(net, product, turned)
    assert [graph.shape(value) for value in values] == [(2, 5, 7), (2, 7, 5)]
    assert all(graph.data(value) is None for value in values)


def test_reshape_by_computed_sizes() -> None:
    """(B,N,D) -> (B·N,D/4,4), with B·N computed from Shape."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    leading = net.op("Shape", x, start=0, end=2)
    count = net.op("ReduceProd", leading, [0], keepdims=1)
    rows = net.op("Reshape", x, net.op("Concat", count, [-1], [4], axis=0))
    graph, (value, number) = concrete(net, rows, count)
    assert graph.shape(value) == (10, WIDTH // 4, 4)
    np.testing.assert_array_equal(graph.data(number), [10])


def test_data_that_follows_from_shapes_is_what_the_graph_computes() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    rows, columns = positions(net)
    visible = net.op("Where", net.op("GreaterOrEqual", rows, columns), 0.0, -1e4)
    model = net.model(visible)
    graph = to_ir(model).graph
    found = ConcreteGraph(graph, SIZES).data(value_of(graph, visible))
    (truth,) = evaluate(model, {x: np.zeros((2, 5, WIDTH), np.float32)})
    assert found is not None
    np.testing.assert_array_equal(found, truth)
    assert found.dtype == np.float32


def test_fed_masks_are_computed_with() -> None:
    net = Net()
    net.input("mask", ["batch", 1, 1, "seq"], "bool")
    hidden = net.op("Not", "mask")
    graph = to_ir(net.model(hidden)).graph
    mask = np.random.default_rng(0).random((2, 1, 1, 5)) < 0.5
    assert ConcreteGraph(graph, SIZES).data(value_of(graph, hidden)) is None
    fed = ConcreteGraph(graph, SIZES, {"mask": mask})
    np.testing.assert_array_equal(fed.data(value_of(graph, hidden)), ~mask)


def test_unknown_operators_are_passed_over() -> None:
    """What depends on one is not known; what does not, is."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    strange = net.op("Rotate", x, domain="my.own")
    after = net.op("Transpose", strange, perm=[0, 2, 1])
    beside = net.op("Transpose", x, perm=[0, 2, 1])
    graph, (first, second) = concrete(net, after, beside)
    assert graph.shape(first) is None
    assert graph.shape(second) == (2, WIDTH, 5)


def test_an_unknown_operator_with_an_annotation_has_its_shape() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    strange = net.op("Rotate", x, domain="my.own")
    after = net.op("Transpose", strange, perm=[0, 2, 1])
    model = net.model(after)
    note = helper.make_tensor_value_info(strange, TensorProto.FLOAT, ["batch", "seq", 4])
    model.graph.value_info.append(note)
    graph = to_ir(model).graph
    assert ConcreteGraph(graph, SIZES).shape(value_of(graph, after)) == (2, 4, 5)


def test_random_numbers_are_no_data() -> None:
    net = Net()
    noise = net.op("RandomNormal", shape=[2, 3])
    graph, (value,) = concrete(net, noise)
    assert graph.data(value) is None
    assert graph.shape(value) == (2, 3)


def test_subgraphs_are_not_evaluated() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "branch", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    choice = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    graph = onnx.helper.make_graph(
        [choice], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
         helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    inside = to_ir(model).graph
    (node,) = list(inside)
    assert has_subgraph(node)
    found = ConcreteGraph(inside, SIZES, {"c": np.array(True), "x": np.ones((2, 3), np.float32)})
    assert found.data(node.outputs[0]) is None


def test_what_does_not_fit_the_sizes_is_not_known() -> None:
    """A bias of 3 positions on 5 tokens: unknown, and no crash."""
    net = Net()
    net.input("x", ["batch", "seq", WIDTH])
    numbers = net.op("Range", 0, lengths(net), 1)
    odd = net.op("Add", numbers, np.arange(3))
    graph, (value,) = concrete(net, odd)
    assert graph.data(value) is None
    graph, (value,) = concrete(net, odd, seq=3)
    np.testing.assert_array_equal(graph.data(value), [0, 2, 4])


def test_large_constants_are_no_data() -> None:
    net = Net()
    big = net.op("Expand", np.zeros((1, 1), np.float32), [3000, 3000])
    graph, (value,) = concrete(net, big)
    assert graph.data(value) is None
    assert graph.shape(value) == (3000, 3000)


def test_the_same_graph_at_another_size() -> None:
    net = Net()
    net.input("x", ["batch", "seq", WIDTH])
    size = square(net)
    graph, (value,) = concrete(net, size)
    np.testing.assert_array_equal(graph.resized("seq", 9).data(value), [9, 9])
    assert graph.resized("seq", 9) is graph.resized("seq", 9)
    np.testing.assert_array_equal(graph.data(value), [5, 5])


def test_constants() -> None:
    net = Net()
    net.input("x", ["batch", "seq", WIDTH])
    graph = to_ir(net.model(net.op("Add", "x", np.full((1, 1, 1), 2.5, np.float32)))).graph
    (constant,) = graph.initializers.values()
    assert constant_scalar(constant) == 2.5
    np.testing.assert_array_equal(constant_array(constant), [[[2.5]]])
    assert constant_scalar(graph.inputs[0]) is None
    assert constant_scalar(None) is None


@pytest.mark.parametrize(("axis", "expected"), [(2, WIDTH**0.5), (1, None), (0, None)])
def test_a_number_made_of_a_size_is_static_only_if_the_size_is(
    axis: int, expected: float | None
) -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    number = net.op("Cast", lengths(net, x, axis), to=TensorProto.FLOAT)
    root = net.op("Sqrt", number)
    graph = to_ir(net.model(root)).graph
    graphs = [ConcreteGraph(graph, sizes) for sizes in (SIZES, {"batch": 3, "seq": 7})]
    assert static_scalar(value_of(graph, root), graphs) == (expected and pytest.approx(expected))


def test_a_number_that_changes_beyond_the_sizes_asked_at_is_not_static() -> None:
    """max(1, N/100), the temperature of some long-context models, is 1 at a few tokens."""
    net = Net()
    net.input("x", ["batch", "seq", WIDTH])
    number = net.op("Cast", lengths(net), to=TensorProto.FLOAT)
    factor = net.op("Max", net.op("Div", number, 100.0), 1.0)
    graph = to_ir(net.model(factor)).graph
    graphs = [ConcreteGraph(graph, sizes) for sizes in (SIZES, {"batch": 3, "seq": 7})]
    assert graphs[0].scalar(value_of(graph, factor)) == 1.0
    assert static_scalar(value_of(graph, factor), graphs) is None
