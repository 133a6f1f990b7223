"""Every attention of a graph is found, however it was written; and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from tests.export.nets import (
    HEADS,
    SIZE,
    WIDTH,
    Net,
    causal_visible,
    inspect_net,
    merge_heads,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
    square,
)
from tests.export.ways_masks import HIDDEN, HIDES, bool_input, float_input
from tests.export.ways_scores import (
    NORMALISES,
    SCALE,
    SCORES,
    bmm_attention,
    operator_attention,
    products,
    with_sink,
)

from attnport.export.records import AttentionInfo


def only(model: onnx.ModelProto) -> AttentionInfo:
    (found,) = inspect_net(model).attentions
    return found


@pytest.mark.parametrize("written", SCORES)
def test_scale_wherever_it_stands(written: str) -> None:
    found = only(self_attention(score=SCORES[written]))
    assert (found.recognised, found.reason, found.source) == (True, "", "pattern")
    assert found.scale == pytest.approx(SCALE, rel=1e-6)
    assert (found.heads, found.kv_heads, found.head_size) == (HEADS, HEADS, SIZE)
    assert (found.mask, found.causal, found.dead_rows) == ("none", False, False)


def test_without_a_scale() -> None:
    found = only(self_attention(score=products))
    assert (found.recognised, found.scale) == (True, 1.0)


@pytest.mark.parametrize("written", HIDES)
def test_masks_however_they_are_applied(written: str) -> None:
    hide, kind, dead_rows = HIDES[written]
    found = only(self_attention(hide=hide))
    assert (found.recognised, found.reason) == (True, "")
    assert (found.mask, found.causal, found.dead_rows) == (kind, False, dead_rows)
    assert found.scale == pytest.approx(SCALE)


def test_a_mask_that_is_no_value_info_still_is_bool() -> None:
    """A file without annotations for what stands inside of the graph: Greater gives bool."""
    model = self_attention(
        hide=lambda n, s: n.op("Where", n.op("Greater", float_input(n), 0.0), s, HIDDEN)
    )
    assert not model.graph.value_info
    assert only(model).mask == "bool"


@pytest.mark.parametrize("written", NORMALISES)
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_however_it_is_wrapped(written: str, causal: bool) -> None:
    def hide(net: Net, scores: str) -> str:
        return net.op("Where", causal_visible(net), scores, -math.inf) if causal else scores

    model = self_attention(normalise=NORMALISES[written], hide=hide, dtype="float16")
    found = only(model)
    assert (found.recognised, found.reason, found.causal) == (True, "", causal)


def test_heads_in_three_dimensions() -> None:
    """(B·H,N,Dh) batched products, as torch.bmm writes them."""
    found = only(bmm_attention())
    assert (found.recognised, found.reason) == (True, "")
    assert (found.heads, found.head_size) == (HEADS, SIZE)


@pytest.mark.parametrize("three_axes", [False, True])
def test_operator(three_axes: bool) -> None:
    found = only(operator_attention(three_axes=three_axes))
    assert (found.source, found.recognised, found.reason) == ("operator", True, "")
    assert (found.heads, found.kv_heads, found.head_size) == (HEADS, HEADS, SIZE)
    assert found.scale == pytest.approx(SCALE)


def test_operator_says_its_scale_and_causality() -> None:
    found = only(operator_attention(scale=0.5, is_causal=1))
    assert (found.scale, found.causal, found.mask) == (0.5, True, "none")


@pytest.mark.parametrize(("mask", "kind"), [("bool", "bool"), ("float32", "additive")])
def test_operator_with_a_mask(mask: str, kind: str) -> None:
    found = only(operator_attention(mask=mask))
    assert (found.mask, found.dead_rows) == (kind, True)


# What is found and left alone, with the reason.


def test_softcap_is_described_with_the_reason() -> None:
    def capped(net: Net, scores: str) -> str:
        return net.op("Mul", net.op("Tanh", net.op("Div", scores, 30.0)), 30.0)

    found = only(self_attention(hide=capped))
    assert "softcap" in found.reason
    assert (found.heads, found.head_size) == (HEADS, SIZE)


def test_softcap_of_the_operator() -> None:
    found = only(operator_attention(softcap=30.0))
    assert "softcap" in found.reason


def test_returned_weights_are_described_with_the_reason() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    weights = softmax(net, scaled_product(net, q, k))
    output = project(net, merge_heads(net, net.op("MatMul", weights, v)))
    found = only(net.model(output, weights))
    assert "weights are used or returned" in found.reason


def test_weights_that_something_else_reads() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    weights = softmax(net, scaled_product(net, q, k))
    mean = net.op("ReduceMean", weights, [1])
    found = only(net.model(merge_heads(net, net.op("MatMul", weights, v)), mean))
    assert "weights are used or returned" in found.reason


@pytest.mark.parametrize("hide", ["nothing", "causal", "padding"])
def test_a_sink_is_described_with_the_reason(hide: str) -> None:
    def hidden(net: Net, scores: str) -> str:
        if hide == "nothing":
            return scores
        visible = causal_visible(net) if hide == "causal" else bool_input(net)
        return net.op("Where", visible, scores, HIDDEN)

    found = only(self_attention(hide=hidden, normalise=with_sink))
    assert (found.recognised, found.sink, found.rewritable) == (True, True, False)
    assert found.reason.startswith("sink")
    assert (found.heads, found.head_size, found.causal) == (HEADS, SIZE, hide == "causal")
    assert not found.dead_rows  # where all keys are hidden the sink takes the row


def test_what_stands_behind_a_sink_is_named() -> None:
    def scaled_behind(net: Net, scores: str) -> str:
        column = net.op("Slice", scores, [0], [1], [3])
        late = net.op("Mul", net.op("Concat", scores, column, axis=-1), 0.5)
        return net.op("Slice", softmax(net, late), [0], [-1], [3], [1])

    found = only(self_attention(normalise=scaled_behind))
    assert not found.recognised
    assert "behind the sink" in found.reason


def test_a_sink_whose_weight_is_kept_is_no_sink() -> None:
    """One more score, and one more value: a key like any other, written beside the rest."""

    def kept(net: Net, scores: str) -> str:
        column = net.op("Slice", scores, [0], [1], [3])
        weights = softmax(net, net.op("Concat", scores, column, axis=-1))
        return net.op("Slice", weights, [1], [1 << 40], [3], [1])

    (found,) = inspect_net(self_attention(normalise=kept)).attentions
    assert not found.recognised


def test_a_scale_after_the_mask_is_named() -> None:
    def late(net: Net, scores: str) -> str:
        return net.op("Mul", net.op("Add", scores, float_input(net)), 0.5)

    found = only(self_attention(hide=late))
    assert not found.recognised
    assert "after the mask" in found.reason


def test_softmax_over_the_queries_is_named() -> None:
    found = only(self_attention(normalise=lambda n, s: n.op("Softmax", s, axis=2)))
    assert not found.recognised
    assert "axis 2" in found.reason


# Softmaxes that are no attention.


def classifier() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    return net.model(softmax(net, project(net, x, 10)))


def router() -> onnx.ModelProto:
    """A mixture of experts: probabilities of a product with a constant, times what experts gave."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    weights = net.op("Unsqueeze", softmax(net, project(net, x, 4)), [2])
    experts = net.op("Reshape", project(net, x, 4 * WIDTH), [0, 0, 4, WIDTH])
    return net.model(net.op("Squeeze", net.op("MatMul", weights, experts), [2]))


def pooling() -> onnx.ModelProto:
    """Attention pooling: scores from a constant vector, which no kernel of attention computes."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    scores = net.op("Transpose", project(net, x, 1), perm=[0, 2, 1])
    return net.model(net.op("MatMul", softmax(net, scores), x))


def table_of_probabilities() -> onnx.ModelProto:
    """The probabilities are multiplied with a constant: an embedding of classes."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, _ = separate(net, x)
    fixed = net.op("Slice", scaled_product(net, q, k), [0], [1], [3])
    return net.model(net.op("MatMul", softmax(net, fixed), net.weight(1, 5)))


@pytest.mark.parametrize("make", [classifier, router, pooling, table_of_probabilities])
def test_other_softmaxes_are_not_claimed(make: Callable[[], onnx.ModelProto]) -> None:
    assert inspect_net(make()).attentions == ()


def test_several_attentions_are_numbered_in_order() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    for scale in (0.5, 0.25):
        q, k, v = separate(net, x)
        weights = softmax(net, net.op("Mul", products(net, q, k), scale))
        x = project(net, merge_heads(net, net.op("MatMul", weights, v)))
    found = inspect_net(net.model(x)).attentions
    assert [(info.name, info.scale) for info in found] == [("attn0", 0.5), ("attn1", 0.25)]


def test_square_tril_buffer_is_causal() -> None:
    def hide(net: Net, scores: str) -> str:
        buffer = np.tril(np.ones((1, 1, 64, 64), bool))
        rows = net.op("Slice", buffer, [0, 0], square(net), [2, 3])
        return net.op("Where", rows, scores, HIDDEN)

    found = only(self_attention(hide=hide))
    assert (found.causal, found.mask, found.dead_rows) == (True, "none", False)
