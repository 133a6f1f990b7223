"""What masks mean: causality and what hides nothing, however written; rows that may be dead."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.export.nets import (
    AXES,
    HEADS,
    SIZE,
    WIDTH,
    Net,
    causal_visible,
    inspect_net,
    lengths,
    merge_heads,
    positions,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
    split_heads,
    to_ir,
    view_of,
)
from tests.export.ways_masks import (
    ALMOST_CAUSAL,
    CAUSAL,
    COVERED,
    HIDDEN,
    LOWEST,
    PADDING,
    UNCOVERED,
    WRAPPED,
    Hide,
    all_true,
    near,
    pad,
    window,
)

from attnport.export.concrete import ConcreteGraph
from attnport.export.context_rows import guard_is_redundant, guard_on
from attnport.export.mask_data import mask_feeds
from attnport.export.passes import look_at
from attnport.export.records import AttentionInfo


def only(model: onnx.ModelProto) -> AttentionInfo:
    (found,) = inspect_net(model).attentions
    assert found.recognised, found.reason
    return found


def meaning(hide: Hide, dtype: str = "float32") -> tuple[str, bool, bool]:
    found = only(self_attention(hide=hide, dtype=dtype))
    return found.mask, found.causal, found.dead_rows


@pytest.mark.parametrize("written", CAUSAL)
def test_causality_however_it_is_written(written: str) -> None:
    assert meaning(CAUSAL[written]) == ("none", True, False)


def test_the_lowest_half_is_a_sentinel_of_causality() -> None:
    lowest = float(np.finfo(np.float16).min)
    hide = lambda n, s: n.op("Where", causal_visible(n), s, lowest)  # noqa: E731
    assert meaning(hide, "float16") == ("none", True, False)


def test_a_mask_that_hides_nothing_is_none() -> None:
    assert meaning(lambda n, s: n.op("Where", all_true(n), s, HIDDEN)) == ("none", False, False)


@pytest.mark.parametrize("written", ALMOST_CAUSAL)
def test_what_is_causal_at_a_few_tokens_only_is_not_causal(written: str) -> None:
    mask, causal, _ = meaning(lambda n, s: n.op("Where", ALMOST_CAUSAL[written](n), s, HIDDEN))
    assert (mask, causal) == ("bool", False)


def test_a_window_as_wide_as_the_longest_sequence_is_causal() -> None:
    longest = AXES["seq"].max
    hide = lambda n, s: n.op("Where", window(n, longest), s, HIDDEN)  # noqa: E731
    assert meaning(hide) == ("none", True, False)


def test_causality_of_a_shifted_query_is_a_mask() -> None:
    """With a past of three keys, query i sees keys 0..i+3."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    past = [net.input(name, ["batch", HEADS, 3, SIZE]) for name in ("past_k", "past_v")]
    q, k, v = separate(net, x)
    k, v = (net.op("Concat", p, fresh, axis=2) for p, fresh in zip(past, (k, v), strict=True))
    rows, _ = positions(net)
    columns = net.op("Range", 0, net.op("Add", lengths(net), 3), 1)
    visible = net.op("GreaterOrEqual", net.op("Add", rows, 3), columns)
    scores = net.op("Where", visible, scaled_product(net, q, k), HIDDEN)
    context = net.op("MatMul", softmax(net, scores), v)
    found = only(net.model(merge_heads(net, context)))
    assert (found.mask, found.causal, found.dead_rows) == ("bool", False, False)


def test_cross_attention_is_causal_by_the_upper_left() -> None:
    """Query i sees keys 0..i whatever the number of keys, as is_causal means it."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    memory = net.input("memory", ["batch", "keys", WIDTH])
    q = split_heads(net, project(net, x))
    k, v = (split_heads(net, project(net, memory)) for _ in range(2))
    rows, _ = positions(net)
    columns = net.op("Range", 0, lengths(net, "memory"), 1)
    visible = net.op("GreaterOrEqual", rows, columns)
    scores = net.op("Where", visible, scaled_product(net, q, k), HIDDEN)
    context = net.op("MatMul", softmax(net, scores), v)
    assert only(net.model(merge_heads(net, context))).causal


# Sentinels that are numbers, and rows without a visible key.


@pytest.mark.parametrize("written", PADDING)
def test_key_padding(written: str) -> None:
    hide, expected = PADDING[written]
    assert meaning(hide) == expected


def test_causality_by_a_number_stays_one_beside_another_mask() -> None:
    """Where padding hides what causality leaves, keys at finfo.min are what is visible."""
    mask, causal, dead_rows = meaning(
        lambda n, s: n.op("Where", pad(n), n.op("Where", causal_visible(n), s, LOWEST), HIDDEN)
    )
    assert (mask, causal, dead_rows) == ("bool", False, True)


def test_a_constant_mask_with_a_dead_row_is_known_to_have_one() -> None:
    """Strictly below the diagonal: the first query sees nothing, whatever the input."""
    hide = lambda n, s: n.op("Where", n.op("Greater", *positions(n)), s, HIDDEN)  # noqa: E731
    assert meaning(hide) == ("bool", False, True)


def test_a_constant_mask_without_a_dead_row_is_known_to_have_none() -> None:
    hide = lambda n, s: n.op("Where", near(n, 3), s, HIDDEN)  # noqa: E731
    assert meaning(hide) == ("bool", False, False)


# Guards on rows: no more than ours says, or something of its own.


def guarded(condition: Callable[[Net, str], str]) -> onnx.ModelProto:
    """Where(condition, context, 0) under a mask of each query."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    mask = net.input("mask", ["batch", 1, "seq", "seq"], "bool")
    q, k, v = separate(net, x)
    scores = net.op("Where", mask, scaled_product(net, q, k), HIDDEN)
    context = net.op("MatMul", softmax(net, scores), v)
    context = net.op("Where", condition(net, mask), context, 0.0)
    return net.model(project(net, merge_heads(net, context)))


def any_visible(net: Net, mask: str) -> str:
    number = net.op("Cast", mask, to=TensorProto.FLOAT)
    largest = net.op("ReduceMax", number, [-1], keepdims=1)
    return net.op("Greater", largest, 0.0)


def all_visible(net: Net, mask: str) -> str:
    number = net.op("Cast", mask, to=TensorProto.FLOAT)
    return net.op("Greater", net.op("ReduceMin", number, [-1], keepdims=1), 0.0)


def first_visible(net: Net, mask: str) -> str:
    return net.op("Slice", mask, [0], [1], [3])


def another_input(net: Net, mask: str) -> str:
    return net.input("keep", ["batch", 1, "seq", 1], "bool")


CONDITIONS = {any_visible: True, all_visible: False, first_visible: False, another_input: False}


@pytest.mark.parametrize(("condition", "redundant"), CONDITIONS.items())
def test_a_guard_is_redundant_only_if_it_says_row_alive(
    condition: Callable[[Net, str], str], redundant: bool
) -> None:
    model = to_ir(guarded(condition))
    view = look_at(model.graph, AXES)
    (site,) = view.sites
    guard = guard_on(site.context)
    assert guard is not None
    assert guard.inputs[0] is not None
    fed = [
        ConcreteGraph(
            model.graph,
            view.graphs[0].sizes,
            mask_feeds(view.sites, [guard.inputs[0]], view.graphs[0], seed),
        )
        for seed in range(3)
    ]
    assert guard_is_redundant(site, guard, fed) is redundant


def test_without_random_masks_no_guard_is_redundant() -> None:
    (site,) = view_of(guarded(any_visible)).sites
    guard = guard_on(site.context)
    assert guard is not None
    assert not guard_is_redundant(site, guard, [])


def test_random_masks_leave_some_rows_dead_and_others_alive() -> None:
    view = view_of(guarded(any_visible))
    feeds = [mask_feeds(view.sites, [], view.graphs[0], seed)["mask"] for seed in range(3)]
    alive = np.stack([feed.any(-1) for feed in feeds])
    assert alive.any()
    assert not alive.all()


def test_additive_masks_are_fed_zero_and_minus_infinity() -> None:
    view = view_of(self_attention(hide=lambda n, s: n.op("Add", s, pad(n, "float32"))))
    feed = mask_feeds(view.sites, [], view.graphs[0], 0)["pad"]
    assert {0.0, -math.inf} == set(feed.ravel().tolist())


@pytest.mark.parametrize("written", COVERED)
def test_what_is_added_where_another_mask_hides_says_nothing(written: str) -> None:
    hide, expected = COVERED[written]
    found = only(self_attention(hide=hide))
    assert (found.mask, found.causal) == expected


@pytest.mark.parametrize("written", UNCOVERED)
def test_what_is_added_elsewhere_stays(written: str) -> None:
    found = only(self_attention(hide=UNCOVERED[written]))
    assert "additive" in found.mask


@pytest.mark.parametrize("written", WRAPPED)
def test_masks_that_hide_are_bool_however_they_are_wrapped(written: str) -> None:
    hide, causal = WRAPPED[written]
    found = only(self_attention(hide=hide))
    assert (found.mask, found.causal, found.dead_rows) == ("bool", causal, True)


def test_a_mask_of_each_head_keeps_its_heads() -> None:
    """(B,N,H) turned to (B,H,1,N): heads that differ are no repetition."""

    def hide(net: Net, scores: str) -> str:
        visible = net.input("mask", ["batch", "seq", HEADS], "bool")
        turned = net.op("Transpose", net.op("Where", visible, 0.0, HIDDEN), perm=[0, 2, 1])
        return net.op("Add", scores, net.op("Unsqueeze", turned, [2]))

    assert only(self_attention(hide=hide)).mask == "additive"
