"""A right engine passes; each way of being wrong fails; what proves nothing is never a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tests.validate.onnx_engine import Change, OnnxEngine
from tests.validate.small_bundle import Fault, with_reference

from attnport.errors import EngineUnavailableError, InternalError, UnsupportedDtypeError
from attnport.export.bundle import Bundle
from attnport.export.records import OutputErrors
from attnport.validate.finding import Finding
from attnport.validate.parity import check_parity

CASE = "b2n7"


@pytest.fixture(params=["float32", "float16"])
def any_bundle(request: pytest.FixtureRequest, bundle: Bundle, half_bundle: Bundle) -> Bundle:
    return bundle if request.param == "float32" else half_bundle


def only(engine: OnnxEngine, bundle: Bundle, case: str = CASE) -> Finding:
    (found,) = check_parity(engine, bundle, case)
    return found


def test_a_right_engine_passes_every_case(any_bundle: Bundle) -> None:
    engine = OnnxEngine(any_bundle)
    found = [only(engine, any_bundle, record.name) for record in any_bundle.manifest.cases]
    assert {finding.status for finding in found} == {"passed"}
    assert all(finding.required for finding in found)
    assert [finding.case for finding in found] == ["b1n1", "b2n7", "b3n16"]
    assert all(0 <= float(str(finding.numbers["ratio"])) < 1 for finding in found)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(scale=2.0),
        Fault(scale=0.5),
        Fault(diagonal=1),
        Fault(diagonal=-1),
        Fault(heads=(1, 0)),
    ],
    ids=["scale doubled", "scale halved", "mask late", "mask early", "heads swapped"],
)
def test_a_graph_that_computes_something_else_fails(any_bundle: Bundle, fault: Fault) -> None:
    found = only(OnnxEngine(any_bundle, fault), any_bundle)
    assert found.status == "failed"
    assert found.required


def spoiled(value: float) -> Change:
    def change(y: np.ndarray) -> np.ndarray:
        y = y.copy()
        y[1, 3, 5] = value
        return y

    return change


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_fails_and_is_named(
    any_bundle: Bundle, value: float
) -> None:
    found = only(OnnxEngine(any_bundle, change=spoiled(value)), any_bundle)
    assert found.status == "failed"
    assert found.numbers["not_finite"] == 1
    assert found.numbers["at"] == [1, 3, 5]
    assert "y[1, 3, 5]" in found.message
    assert Finding.model_validate_json(found.model_dump_json()) == found


def test_all_nan_fails(any_bundle: Bundle) -> None:
    found = only(OnnxEngine(any_bundle, change=lambda y: np.full_like(y, math.nan)), any_bundle)
    assert found.status == "failed"


@pytest.mark.parametrize(
    "change",
    [
        lambda y: np.zeros_like(y),
        lambda y: y[::-1],
        lambda y: y[:, ::-1],
        lambda y: -y,
        lambda y: np.roll(y, 1, -1),
        lambda y: np.where(np.arange(y.shape[-1]) == 3, y * 2, y).astype(y.dtype),
    ],
    ids=["zeros", "batch reversed", "tokens reversed", "negated", "shifted", "one column"],
)
def test_wrong_numbers_fail(any_bundle: Bundle, change: Change) -> None:
    found = only(OnnxEngine(any_bundle, change=change), any_bundle)
    assert found.status == "failed"
    assert "times the bound" in found.message


def test_a_mean_that_is_off_fails_where_no_element_is(bundle: Bundle) -> None:
    loose = with_reference(bundle, CASE, eager=OutputErrors(max=1e-2, mean=1e-7))
    found = only(OnnxEngine(bundle, change=lambda y: y + np.float32(1e-3)), loose)
    assert found.status == "failed"
    assert found.message.startswith("mean error")


@pytest.mark.parametrize(
    "change",
    [lambda y: y[:, :-1], lambda y: y[..., :1], lambda y: y[0], lambda y: y.reshape(-1)],
    ids=["token dropped", "broadcastable", "batch lost", "flattened"],
)
def test_a_wrong_shape_fails(bundle: Bundle, change: Change) -> None:
    found = only(OnnxEngine(bundle, change=change), bundle)
    assert found.status == "failed"
    assert "shape" in found.message


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_wrong_dtype_fails(bundle: Bundle, dtype: type[np.generic]) -> None:
    found = only(OnnxEngine(bundle, change=lambda y: y.astype(dtype)), bundle)
    assert found.status == "failed"
    assert "float32" in found.message


def test_a_missing_output_fails_and_a_foreign_one_too(bundle: Bundle) -> None:
    found = check_parity(OnnxEngine(bundle, rename="z"), bundle, CASE)
    assert [(f.case, f.status) for f in found] == [
        (f"{CASE}/y", "failed"),
        (f"{CASE}/z", "failed"),
    ]


class Raising(OnnxEngine):
    error: Exception = RuntimeError("kernel launch failed")

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("kernel launch failed"), "failed"),
        (EngineUnavailableError("no CUDA device"), "not run"),
        (UnsupportedDtypeError("no kernel for bfloat16"), "not run"),
        (MemoryError(), "not run"),
    ],
)
def test_an_engine_that_raises(bundle: Bundle, error: Exception, status: str) -> None:
    engine = Raising(bundle)
    engine.error = error
    found = only(engine, bundle)
    assert (found.status, found.required) == (status, True)
    assert str(error) in found.message


def test_a_broken_promise_of_ours_is_not_the_engines_fault(bundle: Bundle) -> None:
    engine = Raising(bundle)
    engine.error = InternalError("a bug")
    with pytest.raises(InternalError):
        check_parity(engine, bundle, CASE)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"eager": None}, "PyTorch overflows here"),
        ({"note": "the module is not finite in float64"}, "not finite in float64"),
        ({"eager": OutputErrors(max=1.0, mean=1.0)}, "uninformative"),
        ({"rms": 0.0}, "uninformative"),
        ({"rms": math.nan}, "uninformative"),
    ],
)
@pytest.mark.parametrize("change", [lambda y: y, lambda y: y * 2], ids=["right", "wrong"])
def test_what_proves_nothing_is_not_run_and_never_required(
    bundle: Bundle, known: dict[str, object], words: str, change: Change
) -> None:
    found = only(OnnxEngine(bundle, change=change), with_reference(bundle, CASE, **known))
    assert (found.status, found.required) == ("not run", False)
    assert words in found.message


def test_not_finite_fails_even_where_the_bound_is_uninformative(bundle: Bundle) -> None:
    vague = with_reference(bundle, CASE, eager=OutputErrors(max=1.0, mean=1.0))
    found = only(OnnxEngine(bundle, change=spoiled(math.nan)), vague)
    assert (found.status, found.required) == ("failed", True)


def zero_case(bundle: Bundle) -> tuple[Bundle, np.ndarray]:
    exact = OutputErrors(max=0.0, mean=0.0)
    changes = {"rms": 0.0, "max_abs": 0.0, "eager": exact, "perturbed": exact}
    return with_reference(bundle, CASE, **changes), np.zeros((2, 7, 32))


def test_where_every_row_is_dead_zeros_prove_nothing_and_anything_else_fails(
    bundle: Bundle,
) -> None:
    dead, zeros = zero_case(bundle)
    case = replace(dead.load_case(CASE), references={"y": zeros})
    (right,) = check_parity(OnnxEngine(bundle, change=np.zeros_like), dead, case)
    (wrong,) = check_parity(OnnxEngine(bundle), dead, case)
    assert (right.status, right.required) == ("not run", False)
    assert (wrong.status, wrong.required) == ("failed", True)


def test_dead_rows_are_counted_in_the_sentence(bundle: Bundle) -> None:
    found = only(OnnxEngine(bundle), with_reference(bundle, CASE, dead_rows=3))
    assert found.status == "passed"
    assert "3 dead rows" in found.message


def test_a_reference_with_nan_is_the_modules_fault(bundle: Bundle) -> None:
    case = bundle.load_case(CASE)
    case = replace(case, references={"y": np.full((2, 7, 32), math.nan)})
    (found,) = check_parity(OnnxEngine(bundle), bundle, case)
    assert (found.status, found.required) == ("not run", False)
    assert "module itself" in found.message


def test_a_case_without_reference_is_not_run(bundle: Bundle) -> None:
    case = replace(bundle.load_case(CASE), references={})
    (found,) = check_parity(OnnxEngine(bundle), bundle, case)
    assert (found.status, found.required) == ("not run", False)


def test_an_output_without_elements_is_not_run(bundle: Bundle) -> None:
    case = replace(bundle.load_case(CASE), references={"y": np.ones((0, 7, 32))})
    (found,) = check_parity(OnnxEngine(bundle, change=lambda y: y[:0]), bundle, case)
    assert (found.status, found.required) == ("not run", False)
