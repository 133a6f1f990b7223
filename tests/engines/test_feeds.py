"""Inputs that do not fit are named, with what would."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attnport.axes import Axis
from attnport.engines.feeds import check_feeds
from attnport.errors import InputError
from attnport.export.records import TensorSpec

AXES = {"batch": Axis("batch", 1, 2, 4), "seq": Axis("seq", 1, 8, 16)}
INPUTS = (
    TensorSpec(name="x", dtype="float32", shape=("batch", "seq", 8)),
    TensorSpec(name="mask", dtype="bool", shape=("batch", 1, "seq", "seq"), role="mask"),
)


def feeds(batch: int = 2, seq: int = 3) -> dict[str, np.ndarray]:
    return {
        "x": np.zeros((batch, seq, 8), np.float32),
        "mask": np.ones((batch, 1, seq, seq), np.bool_),
    }


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 8), (4, 16)])
def test_sizes_within_the_ranges_pass(batch: int, seq: int) -> None:
    given = feeds(batch, seq)
    checked = check_feeds(given, INPUTS, AXES)
    assert list(checked) == ["x", "mask"]
    assert all(checked[name] is given[name] for name in given)


def test_arrays_that_are_not_contiguous_are_made_so() -> None:
    given = feeds() | {"x": np.arange(48, dtype=np.float32).reshape(2, 8, 3).transpose(0, 2, 1)}
    checked = check_feeds(given, INPUTS, AXES)
    assert checked["x"].flags.c_contiguous
    np.testing.assert_array_equal(checked["x"], given["x"])


def test_an_axis_without_a_range_takes_any_size_everywhere_the_same() -> None:
    assert check_feeds(feeds(9, 99), INPUTS, {})["x"].shape == (9, 99, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, r"missing: x\): give exactly x, mask"),
        ({"y": np.zeros(1)}, r"unknown: y\): give exactly x, mask"),
        ({"x": None, "X": np.zeros(1)}, r"missing: x; unknown: X"),
        ({"x": [[1.0]]}, r"'x' is a list: give a numpy array of float32"),
        ({"x": np.zeros((2, 3, 8))}, r"'x' is float64, and the graph takes float32"),
        ({"x": np.zeros((2, 3, 8), ml_dtypes.bfloat16)}, r"'x' is bfloat16"),
        ({"mask": np.ones((2, 1, 3, 3))}, r"'mask' is float64, and the graph takes bool"),
        (
            {"x": np.zeros((2, 8), np.float32)},
            r"'x' has shape \(2, 8\): give \(batch 1\.\.4, seq 1\.\.16, 8\)",
        ),
        ({"x": np.zeros((2, 3, 9), np.float32)}, r"'x' has shape \(2, 3, 9\)"),
        (
            {"x": np.zeros((2, 17, 8), np.float32)},
            r"'x' has size 17 at dimension 1: axis 'seq' takes 1 to 16",
        ),
        ({"x": np.zeros((0, 3, 8), np.float32)}, r"size 0 at dimension 0: axis 'batch'"),
        (
            {"mask": np.ones((2, 1, 3, 4), np.bool_)},
            r"'mask' has size 4 at dimension 3 \(seq\), and 3 was given before",
        ),
        ({"mask": np.ones((1, 1, 3, 3), np.bool_)}, r"size 1 at dimension 0 \(batch\), and 2"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, object], message: str) -> None:
    given = {name: value for name, value in (feeds() | changes).items() if value is not None}
    with pytest.raises(InputError, match=message):
        check_feeds(given, INPUTS, AXES)  # type: ignore[arg-type]  # wrong on purpose
