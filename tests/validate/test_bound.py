from __future__ import annotations

import math

import numpy as np
import pytest

from attnport.export.arrays import numpy_dtype
from attnport.export.records import OutputErrors, OutputReference
from attnport.export.rounding import ROUNDINGS
from attnport.validate.bound import (
    INFORMATIVE_MAX_SHARE,
    INFORMATIVE_MEAN_SHARE,
    C,
    bound,
    incomparable,
    suspiciously_exact,
    ulp,
    uninformative,
)


def reference(**changes: object) -> OutputReference:
    known = OutputReference(
        eager=OutputErrors(max=2e-3, mean=2e-4),
        sdpa=OutputErrors(max=1e-3, mean=3e-4),
        perturbed=OutputErrors(max=5e-4, mean=1e-4),
        rms=1.0,
        max_abs=4.0,
    )
    return known.model_copy(update=changes)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("magnitude", [1.0, 1.5, 1e-3, 3e4, 2.0**-13])
def test_ulp_is_numpys_spacing(dtype: str, magnitude: float) -> None:
    number = numpy_dtype(dtype).type(magnitude)
    assert ulp(float(number), dtype) == float(np.spacing(number))


def test_ulp_of_zero_is_the_smallest_number_and_of_integers_zero() -> None:
    assert ulp(0.0, "float16") == float(np.spacing(np.float16(0)))
    assert ulp(7.0, "int64") == 0.0
    assert ulp(1.0, "bfloat16") == 2.0**-7


@pytest.mark.parametrize("largest", ["eager", "sdpa", "perturbed"])
def test_bound_follows_the_largest_of_the_three_errors(largest: str) -> None:
    base = bound(reference(), "float32")
    raised = bound(reference(**{largest: OutputErrors(max=1.0, mean=0.5)}), "float32")
    assert raised.max > base.max
    assert raised.mean > base.mean


def test_bound_works_where_sdpa_and_perturbed_are_unknown() -> None:
    alone = bound(reference(sdpa=None, perturbed=None), "float32")
    assert 0 < alone.max <= bound(reference(), "float32").max


def test_bound_leaves_room_for_rounding_where_pytorch_is_exact() -> None:
    exact = OutputErrors(max=0.0, mean=0.0)
    limit = bound(reference(eager=exact, sdpa=None, perturbed=exact), "float16")
    assert limit.max >= ulp(4.0, "float16")
    assert limit.mean < limit.max


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_error_that_is_not_finite_never_gives_a_usable_bound(bad: float) -> None:
    broken = reference(sdpa=OutputErrors(max=bad, mean=bad))
    assert not math.isfinite(bound(broken, "float32").max)
    assert uninformative(broken, "float32")
    assert "PyTorch overflows here" in incomparable(
        reference(eager=OutputErrors(max=bad, mean=bad))
    )


def test_the_bound_allows_what_the_reference_moves_numbers_by() -> None:
    assert C == ROUNDINGS


def test_uninformative_begins_at_its_share_of_the_rms() -> None:
    limit = bound(reference(), "float32")
    needed = max(limit.max / INFORMATIVE_MAX_SHARE, limit.mean / INFORMATIVE_MEAN_SHARE)
    assert not uninformative(reference(rms=needed * 1.01), "float32")
    assert "uninformative" in uninformative(reference(rms=needed * 0.99), "float32")


@pytest.mark.parametrize("what", ["mean", "maximum"])
def test_uninformative_names_the_bound_that_is_too_wide(what: str) -> None:
    wide = {"mean": OutputErrors(max=2e-3, mean=3e-2), "maximum": OutputErrors(max=0.2, mean=2e-4)}
    assert f"bound on the {what}" in uninformative(reference(eager=wide[what]), "float32")


def exact_output(dtype: str, elements: int = 100) -> tuple[np.ndarray, np.ndarray]:
    truth = np.random.default_rng(0).standard_normal(elements)
    return truth.astype(numpy_dtype(dtype)), truth


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_reference_in_place_of_a_result_is_suspicious(dtype: str) -> None:
    output, truth = exact_output(dtype)
    assert suspiciously_exact(output, truth, reference(eager=OutputErrors(max=1.0, mean=0.1)))
    output[3] = numpy_dtype(dtype).type(float(output[3]) + ulp(float(output[3]), dtype))
    assert not suspiciously_exact(output, truth, reference(eager=OutputErrors(max=1.0, mean=0.1)))


def test_exactness_is_expected_of_few_elements_and_where_pytorch_is_exact_too() -> None:
    few = exact_output("float32", 10)
    assert not suspiciously_exact(*few, reference())
    output, truth = exact_output("float32")
    floor = float(np.abs(output.astype(np.float64) - truth).mean())
    assert not suspiciously_exact(
        output, truth, reference(eager=OutputErrors(max=1.0, mean=floor))
    )


def test_what_cannot_be_compared_says_why() -> None:
    assert incomparable(reference()) == ""
    assert "PyTorch overflows here" in incomparable(reference(eager=None))
    assert incomparable(reference(note="dropout is on")) == "dropout is on"
