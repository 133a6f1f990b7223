"""The parity bound: how far an engine may be from the float64 module. The one place that says it.

    bound = C · max(error of eager PyTorch, error of SDPA, error that one rounding of each number does)
            + ULPS ulp at the output's magnitude

The third is that of the float64 module with weights, inputs and every result on the way moved as
rounding moves them (`attnport.export.rounding`). The bound is taken twice for every output: on the
largest error, with the ulp of the largest magnitude, and on the mean error, with the ulp of the
root mean square, since a mean of rounding errors is as large as the rounding of a typical element.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from attnport.export.arrays import numpy_dtype
from attnport.export.records import OutputErrors, OutputReference

# Good engines come to 3.5 times the error of eager PyTorch where the softmax is saturated, and
# should stay under 0.7 of the bound, so that one that orders its sums otherwise is not accused:
# 3.5 / 0.7 = 5. benchmarks/validate/calibration.md has the distribution of error over bound in more
# than 1,000 runs of good engines in each dtype. It is also what `attnport.export.rounding` moves
# numbers by: the bound allows what so many roundings do.
C = 5.0

# A result is rounded once when it is computed, and once more when an engine stores it in between.
ULPS = 2

# Above these shares of the output's root mean square a bound lets visibly wrong results pass. On
# the mean error: a wrong scale, mask, weight or order moves all of an output by more. On the
# largest: an element that was computed from other inputs is off by 1.4 root mean squares, and the
# worst of its row by 3; half of one still tells it, and is what bfloat16, with 8 bits, can keep.
# benchmarks/validate/mutants.md says what is caught at these shares.
INFORMATIVE_MEAN_SHARE = 0.1
INFORMATIVE_MAX_SHARE = 0.5

# An output of at least so many elements that are all the float64 reference, rounded once, while
# PyTorch's mean error is this many times that rounding: nothing that computes in the dtype does so.
EXACT_ELEMENTS = 64
EXACT_TIMES = 1.25


def bound(reference: OutputReference, dtype: str) -> OutputErrors:
    """The largest and the mean error that an output may have.

    Args:
        reference: What is known of the output in one case.
        dtype: The output's dtype, by its name in records.
    """
    known = [e for e in (reference.eager, reference.sdpa, reference.perturbed) if e is not None]
    return OutputErrors(
        max=C * _largest([e.max for e in known]) + ULPS * ulp(reference.max_abs, dtype),
        mean=C * _largest([e.mean for e in known]) + ULPS * ulp(reference.rms, dtype),
    )


def ulp(magnitude: float, dtype: str) -> float:
    """The distance from a number of that magnitude to the next one; 0 where numbers are whole.

    >>> ulp(1.0, "float16") == 2**-10
    True
    """
    kind = numpy_dtype(dtype)
    if kind.kind in "biu":
        return 0.0
    if not math.isfinite(magnitude):
        return magnitude
    info = ml_dtypes.finfo(kind)
    smallest = int(info.minexp)
    exponent = max(math.frexp(magnitude)[1] - 1, smallest) if magnitude else smallest
    return math.ldexp(1.0, exponent - int(info.nmant))


def incomparable(reference: OutputReference) -> str:
    """Why an output cannot be compared whatever the engine gives; empty where it can."""
    if reference.note:
        return reference.note
    if reference.eager is None:
        return (
            "PyTorch overflows here: the module itself is not finite in this dtype, and float64 is"
        )
    if not (reference.eager.max < math.inf and reference.eager.mean < math.inf):
        return "PyTorch overflows here: its error in this dtype is not finite"
    return ""


def uninformative(reference: OutputReference, dtype: str) -> str:
    """Why being within the bound would prove nothing; empty where it proves something."""
    if reference.max_abs == 0:
        return "uninformative: the reference is zero everywhere"
    limit = bound(reference, dtype)
    for what, allowed, share in (
        ("mean", limit.mean, INFORMATIVE_MEAN_SHARE),
        ("maximum", limit.max, INFORMATIVE_MAX_SHARE),
    ):
        # Written so that a NaN counts as uninformative.
        if not allowed <= share * reference.rms:
            return (
                f"uninformative: the bound on the {what}, {allowed:.3g}, exceeds {share:.0%} of "
                f"the output's root mean square {reference.rms:.3g}"
            )
    return ""


def suspiciously_exact(output: np.ndarray, reference: np.ndarray, record: OutputReference) -> bool:
    """Whether an output can only be the reference itself, returned by mistake.

    Args:
        output: What the engine gave.
        reference: The module's result in float64, of the same shape.
        record: What is known of the output.
    """
    if output.size < EXACT_ELEMENTS or record.eager is None or output.dtype.kind in "biu":
        return False
    rounded = reference.astype(output.dtype)
    if not np.array_equal(output, rounded):
        return False
    floor = float(np.mean(np.abs(rounded.astype(np.float64) - reference)))
    return record.eager.mean > EXACT_TIMES * floor > 0


def _largest(errors: list[float]) -> float:
    # numpy's maximum keeps a NaN; whether Python's does depends on the order.
    return float(np.max(errors, initial=0.0))
