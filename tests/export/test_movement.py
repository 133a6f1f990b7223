"""Chains of nodes that move elements, understood whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.export.evaluation import evaluate
from tests.export.nets import (
    HEADS,
    SIZE,
    WIDTH,
    Net,
    inspect_net,
    project,
    self_attention,
    split_heads,
    to_ir,
    turn,
    view_of,
)
from tests.export.ways_heads import MADE, expanded, gathered, interleaved, repeated, tiled

from attnport.export.concrete import ConcreteGraph
from attnport.export.movement import HeadLayout, head_layout, push_indices, trace_back

COLUMNS = np.arange(WIDTH).reshape(HEADS, SIZE)


@pytest.mark.parametrize("made", MADE)
def test_heads_in_a_block_of_columns_in_order(made: str) -> None:
    model = self_attention(make_heads=MADE[made])
    (site,) = view_of(model).sites
    joint = made not in ("flat Gemm", "step by step")
    for number, which in enumerate(("query", "key", "value")):
        first = number * WIDTH if joint else 0
        expected = "flat" if made == "flat Gemm" else "batch-first"
        assert site.layouts[which].layout == expected  # type: ignore[index]
        np.testing.assert_array_equal(site.layouts[which].columns, first + COLUMNS)  # type: ignore[index]


def test_heads_interleaved_in_the_packed_columns() -> None:
    (site,) = view_of(self_attention(make_heads=interleaved)).sites
    for number, which in enumerate(("query", "key", "value")):
        expected = np.arange(SIZE) + number * SIZE + 3 * SIZE * np.arange(HEADS)[:, None]
        np.testing.assert_array_equal(site.layouts[which].columns, expected)  # type: ignore[index]


def test_sequence_first() -> None:
    net = Net()
    x = net.input("x", ["seq", "batch", WIDTH])
    heads = [
        net.op("Transpose", net.op("Reshape", project(net, x), [0, 0, HEADS, SIZE]), perm=p)
        for p in ([1, 2, 0, 3], [1, 2, 3, 0], [1, 2, 0, 3])
    ]
    weights = net.op("Softmax", net.op("MatMul", heads[0], heads[1]), axis=-1)
    context = net.op("MatMul", weights, heads[2])
    rows = net.op("Reshape", net.op("Transpose", context, perm=[2, 0, 1, 3]), [0, 0, WIDTH])
    (site,) = view_of(net.model(rows)).sites
    assert {layout.layout for layout in site.layouts.values()} == {"sequence-first"}
    assert all(np.array_equal(layout.columns, COLUMNS) for layout in site.layouts.values())


@pytest.mark.parametrize(
    ("repeat", "index"),
    [(expanded, [0, 0, 1, 1]), (gathered, [0, 0, 1, 1]), (tiled, [0, 1, 0, 1])],
)
def test_grouped_queries(repeat: Callable[[Net, str], str], index: list[int]) -> None:
    model = self_attention(make_heads=lambda n, x: repeated(n, x, repeat, 2))
    (site,) = view_of(model).sites
    for which in ("key", "value"):
        distinct, found = site.layouts[which].distinct_heads()
        np.testing.assert_array_equal(distinct, np.arange(16).reshape(2, 8))
        assert found.tolist() == index
    (info,) = inspect_net(model).attentions
    assert (info.heads, info.kv_heads, info.head_size) == (4, 2, 8)


def test_one_key_head_for_all_queries() -> None:
    repeat = lambda n, h: n.op("Tile", h, [1, 4, 1, 1])  # noqa: E731
    (info,) = inspect_net(
        self_attention(make_heads=lambda n, x: repeated(n, x, repeat))
    ).attentions
    assert (info.heads, info.kv_heads, info.head_size) == (4, 1, 8)


# Pushing indices, node by node, against what onnx computes.


def moved(build: Callable[[Net, str], str], shape: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Where the indices end by our account, and by onnx's evaluator."""
    net = Net()
    end = build(net, net.input("x", ["batch", "seq", *shape[2:]]))
    model = net.model(end)
    graph = to_ir(model).graph
    sizes = {"batch": shape[0], "seq": shape[1]}
    found = push_indices(trace_back(graph.outputs[0]), ConcreteGraph(graph, sizes))
    indices = np.arange(np.prod(shape)).reshape(shape)
    (truth,) = evaluate(model, {"x": indices.astype(np.float32)})
    assert found is not None
    return found, truth.astype(np.int64)


MOVES: dict[str, Callable[[Net, str], str]] = {
    "Reshape, keeping sizes": lambda n, x: n.op("Reshape", x, [0, -1, 3]),
    "Reshape to a new batch": lambda n, x: n.op("Reshape", x, [-1, 6]),
    "Transpose": lambda n, x: n.op("Transpose", x, perm=[2, 0, 1]),
    "Transpose by default": lambda n, x: n.op("Transpose", x),
    "Slice with steps": lambda n, x: n.op("Slice", x, [1], [6], [2], [2]),
    "Slice backwards": lambda n, x: n.op("Slice", x, [-1], [-(2**63)], [1], [-1]),
    "Slice of the last": lambda n, x: n.op("Slice", x, [-2], [2**63 - 1], [-1]),
    "Slice of two axes": lambda n, x: n.op("Slice", x, [0, 1], [2, 3]),
    "Gather of a vector": lambda n, x: n.op("Gather", x, [2, 0, 0], axis=2),
    "Gather of a scalar": lambda n, x: n.op("Gather", x, -1, axis=1),
    "Squeeze": lambda n, x: n.op("Squeeze", n.op("Unsqueeze", x, [1, 3]), [3]),
    "Expand": lambda n, x: n.op("Expand", n.op("Unsqueeze", x, [1]), [1, 4, 1, 1]),
    "Tile": lambda n, x: n.op("Tile", x, [1, 2, 3]),
    "Flatten": lambda n, x: n.op("Flatten", x, axis=2),
    "Split, the last part": lambda n, x: n.ops("Split", 2, x, [4, 2], axis=2)[1],
    "Split evenly": lambda n, x: n.ops("Split", 4, x, axis=2, num_outputs=4)[1],
    "Identity": lambda n, x: n.op("Identity", x),
}


@pytest.mark.parametrize("move", MOVES)
def test_moves_are_those_of_onnx(move: str) -> None:
    found, truth = moved(MOVES[move], [2, 5, 6])
    np.testing.assert_array_equal(found, truth)


def test_old_squeeze_and_split_have_attributes() -> None:
    """Opset 11: the axes and sizes are attributes and not inputs."""
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["a"], axes=[1]),
        helper.make_node("Squeeze", ["a"], ["b"], axes=[1]),
        helper.make_node("Split", ["b"], ["c", "d"], axis=1, split=[2, 4]),
    ]
    graph = helper.make_graph(
        nodes, "old", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 6])],
        [helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, [3, 4])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 11)]
    model = to_ir(helper.make_model(graph, opset_imports=opsets, ir_version=7))
    found = push_indices(trace_back(model.graph.outputs[0]), ConcreteGraph(model.graph, {}))
    np.testing.assert_array_equal(found, np.arange(18).reshape(3, 6)[:, 2:])


def test_constant_factors_are_taken_out_of_a_chain() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    heads = net.op("Div", net.op("Mul", 3.0, split_heads(net, net.op("Mul", x, 0.5))), 6.0)
    graph = to_ir(net.model(turn(net, heads))).graph
    chain = trace_back(graph.outputs[0])
    assert chain.source.name == "x"
    assert chain.scale == pytest.approx(0.25)
    assert len(chain.nodes) == 6


def test_a_number_divided_by_a_value_is_no_factor() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    inverse = net.op("Div", 3.0, x)
    graph = to_ir(net.model(net.op("Transpose", inverse, perm=[0, 2, 1]))).graph
    assert trace_back(graph.outputs[0]).source.name == inverse


def test_rows_that_are_mixed_are_no_layout_of_heads() -> None:
    """A Reshape without the transposition gives heads pieces of several tokens."""
    model = self_attention(
        make_heads=lambda n, x: tuple(  # type: ignore[arg-type,return-value]
            n.op("Reshape", project(n, x), [0, HEADS, -1, SIZE]) for _ in range(3)
        )
    )
    (site,) = view_of(model).sites
    assert site.layouts == {}


@pytest.mark.parametrize(
    ("leading", "layout"), [((2, 5), "batch-first"), ((5, 2), "sequence-first"), ((10,), "flat")]
)
def test_layouts(leading: tuple[int, ...], layout: str) -> None:
    source = np.arange(10 * WIDTH).reshape(*leading, HEADS, SIZE)
    if layout == "flat":
        source = source.reshape(2, 5, HEADS, SIZE)
    four = source.transpose((1, 2, 0, 3) if layout == "sequence-first" else (0, 2, 1, 3))
    found = head_layout(four, (*leading, WIDTH))
    assert found is not None
    assert (found.layout, found.heads, found.head_size) == (layout, HEADS, SIZE)
    assert found.same_as(HeadLayout(found.layout, COLUMNS))
    assert not found.same_as(HeadLayout(found.layout, COLUMNS[::-1]))
    assert head_layout(np.roll(four, 1, axis=2), (*leading, WIDTH)) is None


def test_no_tokens_have_no_layout() -> None:
    assert head_layout(np.zeros((2, HEADS, 0, SIZE), np.int64), (2, 0, WIDTH)) is None
