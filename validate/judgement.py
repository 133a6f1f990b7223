"""What is said of one output: form, whether it is finite, and its errors against the bound.

The numbers of a judgement, of which those that were not reached are absent:

    error_max, error_mean       the engine's errors
    bound_max, bound_mean       what they may be
    ratio                       the larger of error / bound; a pass has at most 1
    pytorch_max, pytorch_mean   the errors of eager PyTorch in the same dtype
    at, value, reference        the worst element: coordinate, the engine's value, the module's
    not_finite                  elements that are NaN or infinite and must not be, or the reverse
    rms, dead_rows              of the reference
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnport.errors import EngineUnavailableError, UnsupportedDtypeError
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Case
from attnport.export.records import OutputReference, TensorSpec
from attnport.validate.bound import (
    EXACT_ELEMENTS,
    bound,
    incomparable,
    suspiciously_exact,
    uninformative,
)
from attnport.validate.coverage import NO_ELEMENTS
from attnport.validate.difference import Difference, difference
from attnport.validate.finding import Number, Status

_EXACT = (
    "every element of {} is the float64 reference, rounded once: no engine computes so in this "
    "dtype, so the reference was returned in place of the engine's result; look at what runs it"
)


class Judgement(NamedTuple):
    """What is said of one output.

    Attributes:
        status: The status of its Finding.
        message: The sentence.
        numbers: What was measured on the way.
        counts: Whether it may be required: a case that can prove nothing may not.
    """

    status: Status
    message: str
    numbers: dict[str, Number]
    counts: bool = True


def judge_outputs(
    outputs: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], case: Case
) -> dict[str, Judgement]:
    """Judges what an engine gave for a case: every declared output, and every other one.

    Args:
        outputs: What the engine gave.
        specs: The outputs that the bundle declares.
        case: The case that was run.
    """
    computed = _one_is_computed(outputs, specs, case)
    judged = {spec.name: _judge_declared(outputs, spec, case, computed) for spec in specs}
    for name in outputs:
        if name not in judged:
            known = ", ".join(spec.name for spec in specs)
            message = f"the engine gives {name!r}, which is no output of the bundle ({known})"
            judged[name] = Judgement("failed", message, {})
    return judged


def _one_is_computed(
    outputs: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], case: Case
) -> bool:
    """Whether one output is off the reference by more than its rounding.

    Then another one that is not is shallow, not the reference returned: the cache of a first layer
    is one product, and an engine that computes float16 in float32 rounds each element of it right.
    """
    for spec in specs:
        output, reference = outputs.get(spec.name), case.references.get(spec.name)
        if output is None or reference is None or output.size < EXACT_ELEMENTS:
            continue
        same = output.shape == reference.shape
        if same and not np.array_equal(output, reference.astype(output.dtype)):
            return True
    return False


def _judge_declared(
    outputs: Mapping[str, np.ndarray], spec: TensorSpec, case: Case, computed: bool
) -> Judgement:
    reference = case.references.get(spec.name)
    record = case.record.references.get(spec.name)
    if reference is None or record is None:
        return Judgement("not run", f"the case holds no reference of {spec.name!r}", {}, False)
    if spec.name not in outputs:
        given = ", ".join(outputs) or "nothing"
        return Judgement("failed", f"the engine gives no {spec.name!r}, but {given}", {})
    return judge(outputs[spec.name], spec, reference, record, computed=computed)


def judge(
    output: np.ndarray,
    spec: TensorSpec,
    reference: np.ndarray,
    record: OutputReference,
    *,
    computed: bool = False,
) -> Judgement:
    """Judges one output: form, then whether it is finite, then the errors.

    Args:
        output: What the engine gave.
        spec: What the bundle declares of it.
        reference: The module's result in float64.
        record: What its bound is made of.
        computed: Whether another output of the same run shows that the engine computes.
    """
    malformed = _malformed(output, spec, reference)
    if malformed:
        return Judgement("failed", malformed, {})
    why_not = incomparable(record) or _unusable(reference)
    if why_not:
        return Judgement("not run", why_not, {"dead_rows": record.dead_rows}, False)
    found = difference(output, reference)
    numbers = _numbers(found, record, spec.dtype)
    if found.not_finite:
        return Judgement("failed", _not_finite(found, spec.name), numbers)
    if not computed and suspiciously_exact(output, reference, record):
        return Judgement("failed", _EXACT.format(spec.name), numbers)
    return _judge_errors(found, spec, record, numbers)


def _judge_errors(
    found: Difference, spec: TensorSpec, record: OutputReference, numbers: dict[str, Number]
) -> Judgement:
    limit = bound(record, spec.dtype)
    # A NaN on either side makes a comparison false, so it can only fail.
    within = found.max <= limit.max and found.mean <= limit.mean
    why_not = uninformative(record, spec.dtype)
    # Where the specified value is 0 everywhere (every row dead) an engine of zeros proves nothing,
    # while any other value is wrong.
    if why_not and (within or record.max_abs > 0):
        return Judgement("not run", why_not, numbers, False)
    if not within:
        return Judgement("failed", _too_far(found, spec, record), numbers)
    message = f"largest error {found.max:.3g}, {numbers['ratio']:.2g} of the bound"
    if record.dead_rows:
        message += f"; {record.dead_rows} dead rows compared with the specified value"
    return Judgement("passed", message, numbers)


def _malformed(output: np.ndarray, spec: TensorSpec, reference: np.ndarray) -> str:
    if output.shape != reference.shape:
        return (
            f"{spec.name} has shape {list(output.shape)}, the module gives "
            f"{list(reference.shape)}: look for a size that was frozen at export"
        )
    if output.dtype != numpy_dtype(spec.dtype):
        return f"{spec.name} is {output.dtype}, the bundle declares {spec.dtype}"
    return ""


def _unusable(reference: np.ndarray) -> str:
    if not reference.size:
        return NO_ELEMENTS
    if np.isnan(reference).any():
        return "the module itself gives NaN in float64: no engine can be compared with it"
    return ""


def _numbers(found: Difference, record: OutputReference, dtype: str) -> dict[str, Number]:
    limit = bound(record, dtype)
    numbers: dict[str, Number] = {
        "error_max": found.max,
        "error_mean": found.mean,
        "bound_max": limit.max,
        "bound_mean": limit.mean,
        "ratio": _ratio(found, record, dtype),
        "at": list(found.at),
        "value": found.value,
        "reference": found.expected,
        "not_finite": found.not_finite,
        "rms": record.rms,
        "dead_rows": record.dead_rows,
    }
    if record.eager is not None:
        numbers |= {"pytorch_max": record.eager.max, "pytorch_mean": record.eager.mean}
    return numbers


def _ratio(found: Difference, record: OutputReference, dtype: str) -> float:
    limit = bound(record, dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.divide((found.max, found.mean), (limit.max, limit.mean))
    exact = np.equal((found.max, found.mean), 0.0)  # 0 / 0 is exact agreement, not NaN
    return float(np.max(np.where(exact, 0.0, ratios)))


def _not_finite(found: Difference, name: str) -> str:
    return (
        f"{name}{list(found.at)} is {found.value:.3g}, the float64 module gives "
        f"{found.expected:.3g}: {found.not_finite} elements are wrongly finite or not. PyTorch is "
        "right in this dtype: look at the mask's sentinel and at overflow of the scores"
    )


def _too_far(found: Difference, spec: TensorSpec, record: OutputReference) -> str:
    limit = bound(record, spec.dtype)
    # `not <=` and not `>`: what failed by a NaN must be said as well.
    what, error, allowed = "error", found.max, limit.max
    if found.max <= limit.max:
        what, error, allowed = "mean error", found.mean, limit.mean
    times = _ratio(found, record, spec.dtype)
    return (
        f"{what} {error:.3g} is {times:.3g} times the bound {allowed:.3g}; worst at "
        f"{spec.name}{list(found.at)}: {found.value:.6g}, the float64 module gives "
        f"{found.expected:.6g}. The engine computes something else: compare scale, mask, head "
        "order and weights, and whether it was built from this bundle"
    )


def judgement_of_refusal(error: Exception) -> Judgement:
    # MemoryError says that this machine is too small, not that the engine is wrong.
    if isinstance(error, EngineUnavailableError | UnsupportedDtypeError | MemoryError):
        return Judgement("not run", str(error) or "not enough memory for this case", {})
    return Judgement("failed", f"the engine gave up: {type(error).__name__}: {error}", {})
