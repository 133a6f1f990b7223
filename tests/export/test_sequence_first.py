"""Rows turned to sequence-first and back: the same bits, and only where they may be turned."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common
import pytest
from tests.export.evaluation import Feeds, assert_same_numbers, normal
from tests.export.nets import (
    AXES,
    WIDTH,
    Net,
    merge_heads,
    passed,
    project,
    separate,
    softmax,
    split_heads,
    to_ir,
    turn,
)

from attnport.export.cancel_transposes import cancel_transposes
from attnport.export.passes import look_at
from attnport.export.sequence_first import (
    count_swaps,
    to_batch_first,
    to_sequence_first,
    turning_pays,
)

X: list[int | str] = ["batch", "seq", WIDTH]
Turn = Callable[..., object]


def turned(model: onnx.ModelProto, *turns: Turn) -> tuple[onnx.ModelProto, ir.Model]:
    lowered = to_ir(model)
    for one in turns or (to_sequence_first,):
        one(lowered.graph, look_at(lowered.graph, AXES).graphs[0])
        cancel_transposes(lowered.graph)
        lowered.graph.meta.clear()
        common.ShapeInferencePass()(lowered)
    proto = ir.serde.serialize_model(lowered)
    onnx.checker.check_model(proto, full_check=True)
    return proto, lowered


def attend(net: Net, x: str, memory: str | None = None, mask: str | None = None) -> str:
    if memory is None:
        q, k, v = separate(net, x)
    else:
        q, k, v = (split_heads(net, project(net, rows)) for rows in (x, memory, memory))
    scores = net.op("MatMul", q, turn(net, k))
    if mask is not None:
        scores = net.op("Where", mask, scores, -float("inf"))
    return project(net, merge_heads(net, net.op("MatMul", softmax(net, scores), v)), bias=True)


def norm(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, net.vector(), net.vector(), axis=-1)


def pre_norm(net: Net, x: str) -> str:
    return net.op("Add", x, attend(net, norm(net, x)))


def post_norm(net: Net, x: str) -> str:
    return norm(net, net.op("Add", x, attend(net, x)))


def encoder(block: Callable[[Net, str], str]) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", X)
    return net.model(block(net, block(net, x)))


def decoder() -> onnx.ModelProto:
    net = Net()
    x, memory = net.input("x", X), net.input("memory", ["batch", "keys", WIDTH])
    x = pre_norm(net, x)
    return net.model(net.op("Add", x, attend(net, norm(net, x), memory)))


def masked() -> onnx.ModelProto:
    """With a mask that leaves rows dead, which the passes guard."""
    net = Net()
    x = net.input("x", X)
    mask = net.input("mask", ["batch", 1, "seq", "seq"], "bool")
    return net.model(net.op("Add", x, attend(net, norm(net, x), mask=mask)))


def positions() -> onnx.ModelProto:
    """An operand of (N,D) is broadcast over the batch, one of (B,1,D) over the tokens."""
    net = Net()
    x, table = net.input("x", X), net.input("table", ["seq", WIDTH])
    each = net.input("each", ["batch", 1, WIDTH])
    y = pre_norm(net, net.op("Add", net.op("Add", x, table), each))
    return net.model(net.op("Mul", y, each), net.op("ReduceMean", y, [1], keepdims=0))


def feeds_of(model: onnx.ModelProto, batch: int, tokens: int) -> Feeds:
    sizes = {"batch": batch, "seq": tokens, "keys": tokens + 2}
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in dims]
        feeds[value.name] = normal(shape)
        if value.name == "mask":
            feeds[value.name] = normal(shape) > 0
            feeds[value.name][0, :, 0] = False
    return feeds


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    sizes = ((1, 1), (2, 5), (3, 3))
    assert_same_numbers(before, after, [feeds_of(before, b, n) for b, n in sizes])


GRAPHS = {
    "pre-norm": lambda: encoder(pre_norm),
    "post-norm": lambda: encoder(post_norm),
    "decoder": decoder,
    "dead-rows": masked,
    "positions": positions,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_numbers_stay(name: str) -> None:
    model, _ = passed(GRAPHS[name]())
    lowered, turned_model = turned(model)
    assert count_swaps(turned_model.graph) > 0
    assert_same(model, lowered)
    names = {node.name for node in lowered.graph.node}
    assert {node.name for node in model.graph.node} <= names
    assert [o.name for o in lowered.graph.output] == [o.name for o in model.graph.output]


@pytest.mark.parametrize("name", GRAPHS)
def test_turning_back_undoes_it(name: str) -> None:
    model, _ = passed(GRAPHS[name]())
    lowered, back = turned(model, to_sequence_first, to_batch_first)
    # What is broadcast over the batch, (N,D), is an operand of three axes by then.
    assert count_swaps(back.graph) == (1 if name == "positions" else 0)
    assert_same(model, lowered)


def test_a_region_has_one_transposition_at_each_border() -> None:
    model, _ = passed(encoder(pre_norm))
    lowered = to_ir(model)
    record = to_sequence_first(lowered.graph, look_at(lowered.graph, AXES).graphs[0])
    assert record.changed == 8  # queries, keys, values and the context, twice
    assert count_swaps(lowered.graph) == 2


def test_rows_that_something_mixes_stay() -> None:
    net = Net()
    x = net.input("x", X)
    model = to_ir(net.model(net.op("Softmax", x, axis=1)))
    record = to_sequence_first(model.graph, look_at(model.graph, AXES).graphs[0])
    assert record.changed == 0
    assert count_swaps(model.graph) == 0


@pytest.mark.parametrize(
    ("ways", "transpositions", "pays"),
    [(16, 2, True), (4, 4, False), (4, 6, False), (0, 0, False)],
)
def test_the_rule(ways: int, transpositions: int, pays: bool) -> None:
    assert turning_pays(ways, transpositions) is pays
