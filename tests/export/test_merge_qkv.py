"""Projections that share their input become one matrix; the others are left alone, and it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import (
    AXES,
    HEADS,
    SIZE,
    WIDTH,
    Heads,
    Net,
    inspect_net,
    merge_heads,
    passed,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
    split_heads,
    to_ir,
)
from tests.export.ways_heads import MADE, REPEATS, by_einsum, repeated

from attnport.export.onnx_file import inspect_model, save_onnx
from attnport.export.passes import run_passes
from attnport.export.records import PassRecord, ProjectionGroup

WEIGHT_BYTES = 4 * WIDTH * WIDTH


def merged(model: onnx.ModelProto) -> tuple[onnx.ModelProto, PassRecord, ProjectionGroup]:
    """The model after the passes, with the same numbers, and what is said of its one group."""
    after, done = passed(model)
    assert_same_numbers(model, after, feeds_of(model))
    (group,) = inspect_net(after).projection_groups
    return after, done.merge, group


def feeds_of(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    return [
        {
            value.name: normal((2, length + 2 * index, WIDTH), seed=index)
            for index, value in enumerate(model.graph.input)
        }
        for length in (1, 9)
    ]


def with_biases(*biased: bool) -> Callable[[Net, str], Heads]:
    def make(net: Net, x: str) -> Heads:
        q, k, v = (split_heads(net, project(net, x, bias=bias)) for bias in biased)
        return q, k, v

    return make


def matrices(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The constants that products multiply with, by name."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    used = [node.input[1] for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    return {name: constants[name] for name in used if name in constants}


BIASES = [(False, False, False), (True, True, True), (True, False, True), (False, False, True)]


@pytest.mark.parametrize("biased", BIASES)
def test_three_projections_become_one_product(biased: tuple[bool, ...]) -> None:
    before = self_attention(make_heads=with_biases(*biased))
    after, record, group = merged(before)
    assert record.changed == 1
    assert record.notes == ("attn0/qkv: 3 products of 3 projections became one MatMul",)
    assert (group.name, group.kind, group.merged) == ("attn0/qkv", "qkv", True)
    assert (group.sizes, group.nodes) == ((WIDTH,) * 3, ("/attn0/qkv",))
    shapes = sorted(array.shape for array in matrices(after).values())
    assert shapes == [(WIDTH, WIDTH), (WIDTH, 3 * WIDTH)]


def test_the_columns_of_the_matrix_are_those_of_the_three_in_order() -> None:
    before = self_attention()
    after, _, _ = merged(before)
    originals = list(matrices(before).values())[:3]
    (wide,) = [m for m in matrices(after).values() if m.shape[1] == 3 * WIDTH]
    np.testing.assert_array_equal(wide, np.concatenate(originals, axis=1))


def test_a_missing_bias_is_zero() -> None:
    after, _, _ = merged(self_attention(make_heads=with_biases(True, False, True)))
    (bias,) = [
        numpy_helper.to_array(t) for t in after.graph.initializer if list(t.dims) == [3 * WIDTH]
    ]
    assert bias[:WIDTH].any()
    assert not bias[WIDTH : 2 * WIDTH].any()
    assert bias[2 * WIDTH :].any()


def test_before_the_pass_the_group_is_described_as_unmerged() -> None:
    (group,) = inspect_net(self_attention()).projection_groups
    assert not group.merged
    assert len(group.nodes) == 3
    assert "3 separate products share one input" in group.reason


@pytest.mark.parametrize("repeat", REPEATS)
def test_grouped_queries_have_unequal_parts(repeat: str) -> None:
    before = self_attention(make_heads=lambda n, x: repeated(n, x, REPEATS[repeat], 2))
    after, record, group = merged(before)
    assert record.changed == 1
    assert (group.kind, group.sizes, group.merged) == ("qkv", (32, 16, 16), True)
    (attention,) = inspect_net(after).attentions
    assert (attention.heads, attention.kv_heads) == (4, 2)
    assert (WIDTH, WIDTH + 32) in [array.shape for array in matrices(after).values()]


def cross_attention() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    memory = net.input("memory", ["batch", "keys", WIDTH])
    q = split_heads(net, project(net, x))
    k, v = (split_heads(net, project(net, memory)) for _ in range(2))
    rows = merge_heads(net, net.op("MatMul", softmax(net, scaled_product(net, q, k)), v))
    return net.model(project(net, rows))


def test_key_and_value_alone_where_the_query_has_another_input() -> None:
    after, record, group = merged(cross_attention())
    assert record.changed == 1
    assert (group.kind, group.sizes, group.merged) == ("kv", (WIDTH, WIDTH), True)
    assert (WIDTH, 2 * WIDTH) in [array.shape for array in matrices(after).values()]


def transposed(net: Net, x: str) -> Heads:
    """Weights as nn.Linear holds them, (out,in), under a Transpose in the graph."""
    q, k, v = (
        split_heads(
            net, net.op("MatMul", x, net.op("Transpose", net.weight(columns=WIDTH), perm=[1, 0]))
        )
        for _ in range(3)
    )
    return q, k, v


def by_gemm(trans_b: int) -> Callable[[Net, str], Heads]:
    """(B·N,D) by Gemm, with a weight that stands either way."""

    def make(net: Net, x: str) -> Heads:
        rows = net.op("Reshape", x, [-1, WIDTH])
        shape = net.op("Concat", net.op("Shape", x, start=0, end=2), [WIDTH], axis=0)
        found = []
        for _ in range(3):
            product = net.op("Gemm", rows, net.weight(), net.vector(), transB=trans_b)
            found.append(split_heads(net, net.op("Reshape", product, shape)))
        return found[0], found[1], found[2]

    return make


STORED = {"Transpose": transposed, "Gemm, transB=1": by_gemm(1), "Gemm, transB=0": by_gemm(0)}


@pytest.mark.parametrize("stored", STORED)
def test_weights_stored_either_way(stored: str) -> None:
    after, record, group = merged(self_attention(make_heads=STORED[stored]))
    assert record.changed == 1
    assert (group.kind, group.merged) == ("qkv", True)
    assert not [node for node in after.graph.node if node.op_type == "Gemm"]


def test_weights_with_an_axis_of_heads() -> None:
    """XLNet's: Einsum of rows with (D,H,Dh)."""
    after, record, group = merged(self_attention(make_heads=by_einsum))
    assert record.changed == 1
    assert (group.kind, group.merged) == ("qkv", True)
    assert "Einsum" not in [node.op_type for node in after.graph.node]
    assert len(matrices(after)) == 2


@pytest.mark.parametrize("made", ["chunk", "slices", "unbind"])
def test_one_product_already(made: str) -> None:
    before = self_attention(make_heads=MADE[made])
    after, record, group = merged(before)
    assert group.merged
    assert len(matrices(after)) == len(matrices(before)) == 2
    assert "already one product" in record.notes[0]


def test_a_second_run_finds_it_merged() -> None:
    once, _ = passed(self_attention(make_heads=with_biases(True, True, True)))
    again, done = passed(once)
    assert (done.merge.changed, done.merge.notes) == (0, ("attn0/qkv: already one product",))
    assert [n.name for n in again.graph.node] == [n.name for n in once.graph.node]


# What is left alone.


def one_used_elsewhere(also_output: bool) -> onnx.ModelProto:
    """The keys' projection is also an output, or read by something else."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    rows = [project(net, x) for _ in range(3)]
    q, k, v = (split_heads(net, row) for row in rows)
    context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
    output = project(net, merge_heads(net, context))
    extra = rows[1] if also_output else net.op("ReduceMean", rows[1], [1])
    return net.model(output, extra)


@pytest.mark.parametrize("also_output", [False, True])
def test_a_projection_that_is_used_elsewhere_is_left_alone_and_named(also_output: bool) -> None:
    before = one_used_elsewhere(also_output)
    after, done = passed(before)
    assert done.merge.changed == 0
    assert "left alone: the key projection is also used elsewhere" in done.merge.notes[0]
    assert_same_numbers(before, after, feeds_of(before))
    (group,) = inspect_net(after).projection_groups
    assert not group.merged
    assert "used elsewhere" in group.reason


def test_weights_that_are_no_constants_are_no_projections() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    weights = net.input("weights", [WIDTH, WIDTH])
    q, k, v = (split_heads(net, net.op("MatMul", x, weights)) for _ in range(3))
    context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
    model = net.model(merge_heads(net, context))
    assert inspect_net(model).projection_groups == ()
    assert passed(model)[1].merge.changed == 0


def test_projections_of_different_inputs_are_no_group() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    inputs = [x, net.op("Relu", x), net.op("Neg", x)]
    q, k, v = (split_heads(net, project(net, value)) for value in inputs)
    context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
    assert inspect_net(net.model(merge_heads(net, context))).projection_groups == ()


def test_one_weight_shared_by_query_and_key_is_one_product_with_each() -> None:
    """Tied projections, as in Reformer: the same matrix twice, and the numbers stay."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    shared = net.weight()
    q, k = (split_heads(net, net.op("MatMul", x, shared)) for _ in range(2))
    v = split_heads(net, project(net, x))
    context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
    model = net.model(merge_heads(net, context))
    after, _ = passed(model)
    assert_same_numbers(model, after, feeds_of(model))


# Memory.


def test_the_merged_weights_replace_the_three_in_the_file(tmp_path: Path) -> None:
    before = self_attention()
    model = to_ir(before)
    run_passes(model, AXES)
    save_onnx(model, tmp_path / "after.onnx")
    onnx.save(before, tmp_path / "before.onnx")
    written = onnx.load(tmp_path / "after.onnx")
    weights = [t for t in written.graph.initializer if len(t.dims) == 2]
    assert sum(numpy_helper.to_array(t).nbytes for t in weights) == 4 * WEIGHT_BYTES
    grown = (tmp_path / "after.onnx").stat().st_size - (tmp_path / "before.onnx").stat().st_size
    assert grown < WEIGHT_BYTES
    (group,) = inspect_model(tmp_path / "after.onnx").projection_groups
    assert group.merged


def test_a_matrix_that_is_read_beside_its_projection_stays_for_the_other() -> None:
    """A tied weight that something else reads too: the copy that is merged, and its own."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    shared = net.weight()
    q = split_heads(net, net.op("MatMul", x, shared))
    k, v = (split_heads(net, project(net, x)) for _ in range(2))
    context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
    output = net.op("MatMul", merge_heads(net, context), shared)
    model = net.model(output)
    after, _ = passed(model)
    assert_same_numbers(model, after, feeds_of(model))


def test_the_heads_of_the_group_stay_as_they_are() -> None:
    after, _, _ = merged(self_attention())
    (attention,) = inspect_net(after).attentions
    assert (attention.heads, attention.head_size) == (HEADS, SIZE)


def test_two_attentions_on_one_input_are_two_groups() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    outputs = []
    for _ in range(2):
        q, k, v = separate(net, x)
        context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
        outputs.append(project(net, merge_heads(net, context)))
    model = net.model(net.op("Add", *outputs))
    after, done = passed(model)
    assert done.merge.changed == 2
    assert [g.name for g in inspect_net(after).projection_groups] == ["attn0/qkv", "attn1/qkv"]
    assert_same_numbers(model, after, feeds_of(model))
