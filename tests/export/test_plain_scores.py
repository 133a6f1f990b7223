"""Scores that are scaled after a bias, and masks that are subtracted: found, and the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx
import pytest
from tests.export.nets import SIZE, Net, inspect_net, passed, self_attention, turn
from tests.export.test_passes_keep_numbers import assert_kept
from tests.export.ways_heads import by_einsum
from tests.export.ways_masks import float_input

SCALE = 1 / math.sqrt(SIZE)
Scores = Callable[[Net, str, str], str]


def _products(net: Net, q: str, k: str) -> str:
    return net.op("MatMul", q, turn(net, k))


def _bias(net: Net) -> str:
    return net.input("key_bias", ["batch", 1, 1, "seq"])


SCALED: dict[str, Scores] = {
    "Mul of a sum": lambda n, q, k: n.op("Mul", n.op("Add", _products(n, q, k), _bias(n)), SCALE),
    "Div of a sum": lambda n, q, k: n.op(
        "Div", n.op("Add", _bias(n), _products(n, q, k)), math.sqrt(SIZE)
    ),
    "the factor on the left, of two sums": lambda n, q, k: n.op(
        "Mul",
        SCALE,
        n.op("Add", n.op("Add", _products(n, q, k), _bias(n)), n.op("Tanh", _bias(n))),
    ),
}


def _less_the_mask(net: Net, scores: str) -> str:
    return net.op("Sub", scores, net.op("Mul", float_input(net), 65500.0))


@pytest.mark.parametrize("scaled", SCALED)
def test_scale_of_a_sum(scaled: str) -> None:
    model = self_attention(score=SCALED[scaled])
    (attention,) = inspect_net(assert_kept(model)).attentions
    assert attention.recognised
    assert attention.scale == pytest.approx(SCALE)


def test_a_mask_that_is_subtracted() -> None:
    after = assert_kept(self_attention(hide=_less_the_mask))
    (attention,) = inspect_net(after).attentions
    assert (attention.recognised, attention.mask) == (True, "additive")


def test_as_xlnet_has_them_all() -> None:
    model = self_attention(make_heads=by_einsum, score=SCALED["Mul of a sum"], hide=_less_the_mask)
    found = inspect_net(assert_kept(model))
    (attention,), (group,) = found.attentions, found.projection_groups
    assert attention.recognised
    assert group.merged


@pytest.mark.parametrize(
    "model",
    [self_attention(score=SCALED["Mul of a sum"]), self_attention(hide=_less_the_mask)],
    ids=["scale", "mask"],
)
def test_a_second_run_changes_nothing(model: onnx.ModelProto) -> None:
    after, _ = passed(model)
    assert passed(after)[1].changed == 0
