"""Axes, and those that are as long as others together."""

from __future__ import annotations

import pytest

from attnport.axes import (
    Axis,
    AxisLike,
    AxisSum,
    axes_by_name,
    parse_axis,
    sizes_with_sums,
    with_sums,
)
from attnport.errors import UsageError

GIVEN: dict[str, AxisLike] = {"past": (0, 8, 32), "seq": (1, 4, 16), "total": "past + seq"}
AXES = axes_by_name(GIVEN)


def test_a_sum_has_the_range_that_follows() -> None:
    total = AXES["total"]
    assert (total.min, total.opt, total.max) == (1, 12, 48)
    assert total.rule == "total = past + seq"
    assert not AXES["seq"].rule
    assert sizes_with_sums(AXES, {"past": 3, "seq": 2}) == {"past": 3, "seq": 2, "total": 5}


def test_its_range_follows_a_changed_one() -> None:
    changed = with_sums({**AXES, "past": Axis("past", 0, 0, 0)})
    assert changed["total"] == Axis("total", 1, 4, 16, ("past", "seq"))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("total=past+seq", ("past", "seq")),
        ("total = past + seq", ("past", "seq")),
        ("total=seq + 1", ("seq", 1)),
        ("total=past+seq-2", ("past", "seq", -2)),
        ("total=1+past", (1, "past")),
    ],
)
def test_sums_are_read(text: str, terms: tuple[str | int, ...]) -> None:
    assert parse_axis(text) == AxisSum("total", terms)


def test_ranges_are_read_as_before() -> None:
    assert parse_axis("seq=1:2:3") == Axis("seq", 1, 2, 3)


@pytest.mark.parametrize("text", ["total=", "total=5", "total=1:x:3", "total"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form name=min:opt:max"):
        parse_axis(text)


@pytest.mark.parametrize("text", ["total=past*seq", "total=past-seq", "total=1+2", "2x=past+seq"])
def test_what_is_no_sum_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"with \+ and - between them"):
        parse_axis(text)


@pytest.mark.parametrize(
    ("axes", "part"),
    [
        ({"seq": (1, 2, 3), "total": "past + seq"}, "'past' is no axis .*those are seq"),
        (
            {"seq": (1, 2, 3), "a": "seq + 1", "b": "a + seq"},
            "'a' is no axis with a range of its own",
        ),
        ({"seq": (1, 2, 3), "total": "seq - 2"}, "has min=-1"),
    ],
)
def test_sums_of_what_is_not_there_are_refused(axes: dict[str, AxisLike], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        axes_by_name(axes)


@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 3, 4), ()])
def test_an_axis_of_other_than_three_sizes_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"give its \(min, opt, max\)"):
        axes_by_name({"batch": sizes})  # type: ignore[arg-type]  # wrong on purpose
