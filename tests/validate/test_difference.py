from __future__ import annotations

import math

import numpy as np
import pytest

from attnport.validate.difference import difference

ONES = np.ones((2, 3))


def test_worst_element_and_both_errors() -> None:
    output = ONES.copy()
    output[1, 2] = 4.0
    found = difference(output, ONES)
    assert (found.max, found.mean, found.at) == (3.0, 0.5, (1, 2))
    assert (found.value, found.expected, found.not_finite) == (4.0, 1.0, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite_is_found_counted_and_never_small(bad: float) -> None:
    output = ONES.copy()
    output[0, 1] = bad
    found = difference(output, ONES)
    assert (found.not_finite, found.at) == (1, (0, 1))
    assert not found.max < math.inf


def test_infinities_agree_only_with_themselves() -> None:
    reference = ONES.copy()
    reference[0, 0] = math.inf
    assert difference(reference, reference).max == 0
    assert difference(ONES, reference).not_finite == 1
    assert difference(-reference, reference).not_finite == 1


def test_a_nan_in_the_reference_never_agrees() -> None:
    reference = np.full((2, 3), math.nan)
    assert difference(reference, reference).not_finite == 6


def test_errors_are_taken_in_float64() -> None:
    small = np.asarray([1.0], np.float16)
    assert difference(small, np.asarray([1.0 + 1e-9])).max == pytest.approx(1e-9)


def test_scalars_have_an_empty_coordinate() -> None:
    assert difference(np.asarray(2.0), np.asarray(1.0)).at == ()


@pytest.mark.parametrize("shape", [(3,), (2, 1), (6,)])
def test_shapes_are_never_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        difference(np.ones(shape), ONES)
