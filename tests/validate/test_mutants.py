"""A dozen of the faults of `make mutants`, and that the whole table still says: all caught.

The others run behind the make target; what they gave is kept beside the calibration.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.validate.mutants.trial import FAULTS, Bed

from attnport.validate.bound import C

KEPT = Path(__file__).parents[2] / "benchmarks" / "validate"
DTYPES = ("float32", "float16", "bfloat16")
DOZEN = (
    "scale missing",
    "scale squared (1/Dh)",
    "mask inverted",
    "mask shifted by one",
    "dead rows unguarded",
    "softmax over the wrong axis",
    "heads reversed",
    "K and V swapped",
    "W_O transposed",
    "an exponent bit of W_V flipped",
    "the last token wrong at odd lengths",
    "the reference returned, the engine not run",
    "NaN in one element",
    "a stale engine of another model",
)


@pytest.fixture(scope="module", params=DTYPES)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    return Bed("masked", request.param, tmp_path_factory.mktemp("mutants"))


def test_a_good_engine_is_not_accused(bed: Bed) -> None:
    good = bed.good_trial()
    assert not good.caught, good.by
    assert good.informative > 0


@pytest.mark.parametrize("fault", DOZEN)
def test_a_fault_is_caught(bed: Bed, fault: str) -> None:
    trial = bed.trial(fault)
    assert trial is not None
    assert trial.caught


def kept(name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((KEPT / name).read_text("utf-8"))
    return content


def test_the_table_of_faults_says_all_caught_and_nobody_accused() -> None:
    table = kept("mutants.json")
    assert table["missed"] == []
    assert table["false_alarms"] == []
    trials = table["trials"]
    assert isinstance(trials, list)
    assert {trial["fault"] for trial in trials} == set(FAULTS)
    assert {trial["dtype"] for trial in trials} == set(DTYPES)
    assert len(FAULTS) >= 40


def test_the_calibration_fixes_the_constant() -> None:
    table = kept("calibration.json")
    assert table["constant"] == C
    assert table["false_alarms"] == dict.fromkeys(DTYPES, 0)
    rows = table["table"]
    assert isinstance(rows, list)
    for row in rows:
        if row["magnitude"] == "all":
            assert row["runs"] >= 1000, row
            assert row["max_informative"] < 0.7, row
