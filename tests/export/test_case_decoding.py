"""Sizes of the case that decoding is proved by."""

from __future__ import annotations

import numpy as np
import pytest

from attnport.axes import Axis, AxisSum, axes_by_name
from attnport.export.case_decoding import decoding_sizes
from attnport.export.cases import decoding_plan
from attnport.export.records import TensorSpec

Range = tuple[int, int, int]


def specs(cache: int | str, keys: int | str, high: int | None = None) -> tuple[TensorSpec, ...]:
    ids = ("batch", "seq")
    return (
        TensorSpec(name="ids", dtype="int64", shape=ids, role="token_ids", high=9),
        TensorSpec(name="at", dtype="int64", shape=ids, role="positions", high=high),
        TensorSpec(name="mask", dtype="bool", shape=(*ids, keys), role="mask"),
        TensorSpec(
            name="where", dtype="int64", shape=("batch",), role="write_at", room=(32, "seq")
        ),
        TensorSpec(name="k", dtype="float32", shape=("batch", 2, cache, 4), role="cache"),
    )


def axes(seq: Range = (1, 4, 64), past: Range = (0, 8, 64)) -> dict[str, Axis]:
    return axes_by_name(
        [Axis("batch", 1, 2, 8), Axis("seq", *seq), Axis("past", *past),
         AxisSum("total", ("past", "seq"))]
    )  # fmt: skip


def test_growing_caches_begin_empty() -> None:
    found = decoding_sizes(specs("past", "total"), axes())
    assert found == {"batch": 3, "seq": 24, "past": 0, "total": 24}


@pytest.mark.parametrize(
    ("seq", "past", "high", "tokens"),
    [
        ((1, 4, 16), (0, 8, 64), None, 16),  # one pass takes no more
        ((1, 4, 64), (0, 8, 12), None, 11),  # the last step reads 12, two of them padding
        ((1, 4, 64), (0, 8, 64), 10, 10),  # no more positions
    ],
)
def test_sequences_fit_what_the_model_takes(
    seq: Range, past: Range, high: int | None, tokens: int
) -> None:
    found = decoding_sizes(specs("past", "total", high), axes(seq, past))
    assert found is not None
    assert found["seq"] == tokens


def test_static_caches_leave_room_for_padding() -> None:
    found = decoding_sizes(specs(16, 16), axes())
    assert found is not None
    assert found["seq"] == 14


def test_capacity_that_is_an_axis_is_the_largest() -> None:
    sizes = axes() | axes_by_name({"capacity": (8, 16, 20)})
    found = decoding_sizes(specs("capacity", "capacity"), sizes)
    assert found is not None
    assert (found["capacity"], found["seq"]) == (20, 18)


@pytest.mark.parametrize(
    ("seq", "past"),
    [((1, 1, 1), (0, 8, 64)), ((1, 4, 64), (0, 1, 1)), ((4, 8, 64), (0, 1, 2))],
)
def test_no_case_where_no_prompt_can_be_given(seq: Range, past: Range) -> None:
    assert decoding_sizes(specs("past", "total"), axes(seq, past)) is None


def test_no_case_without_caches() -> None:
    assert decoding_sizes(specs("past", "total")[:3], axes()) is None


def test_inputs_are_those_of_a_first_pass() -> None:
    given = specs(32, 32)
    plan = decoding_plan(given, axes())
    assert plan is not None
    inputs = plan.inputs(given)
    assert (inputs["where"] == 0).all()
    np.testing.assert_array_equal(inputs["at"][1], np.arange(24))
    np.testing.assert_array_equal(inputs["mask"][2], np.tri(24, 32, dtype=bool))
