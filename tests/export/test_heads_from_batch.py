"""Attention that has its heads in the batch axis for a part of the way is found, and keeps its numbers."""

from __future__ import annotations

import pytest
from tests.export.evaluation import assert_same_numbers
from tests.export.nets import (
    HEADS,
    SIZE,
    Net,
    inspect_net,
    op_types,
    passed,
    project,
    softmax,
    split_heads,
)
from tests.export.test_passes_keep_numbers import FORMS, assert_kept, cases
from tests.export.ways_batch import (
    WAYS,
    joined,
    masked_in_four,
    model_of,
    parted,
    weights_returned,
)

from attnport.export.records import Form

# DeBERTa's mask sets scores to a number, for which the operator has no place.
ASKED = [
    (way, form) for way in WAYS for form in FORMS if (way, form) != ("DeBERTa's", "attention")
]


@pytest.mark.parametrize(("way", "form"), ASKED)
def test_found_merged_and_the_same_numbers(way: str, form: Form) -> None:
    after = assert_kept(model_of(WAYS[way], opset=23 if form == "attention" else 18), form)
    found = inspect_net(after)
    (attention,), (group,) = found.attentions, found.projection_groups
    assert (attention.recognised, attention.reason) == (True, "")
    assert (attention.heads, attention.head_size) == (HEADS, SIZE)
    assert (group.kind, group.merged) == ("qkv", True)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_run_changes_nothing(way: str) -> None:
    after, _ = passed(model_of(WAYS[way]))
    assert passed(after)[1].changed == 0


def test_nothing_is_reshaped_on_the_way_any_more() -> None:
    after, _ = passed(model_of(masked_in_four))
    assert op_types(after).count("Reshape") == 2  # to heads (of q, k and v at once), and from them


def test_weights_that_are_returned_stay_an_output() -> None:
    model = model_of(weights_returned)
    after, _ = passed(model)
    assert_same_numbers(model, after, list(cases(model)))
    (found,) = inspect_net(after).attentions
    assert "weights are used or returned" in found.reason


def regrouped(net: Net, x: str) -> tuple[str, ...]:
    """(B·H,N,T) as (B·H,1,N,T): an axis of one, and no heads."""
    q, k, v = (joined(net, split_heads(net, project(net, x))) for _ in range(3))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1]))
    last = net.op("Shape", scores, start=1, end=3)
    ones = net.op("Reshape", scores, net.op("Concat", [-1, 1], last, axis=0))
    weights = net.op("Reshape", softmax(net, ones), net.op("Concat", [-1], last, axis=0))
    return (parted(net, net.op("MatMul", weights, v)),)


def test_an_axis_that_is_not_that_of_the_heads_is_left_as_it_is() -> None:
    model = model_of(regrouped)
    after, done = passed(model)
    assert_same_numbers(model, after, list(cases(model)))
    (record,) = [record for record in done.records if record.name == "heads_from_batch"]
    assert record.changed == 0
    assert "left as it is" in record.notes[0]
