"""The statistics of latency, on samples made up here: nothing depends on this machine's speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.validate.small_bundle import make_bundle

from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.validate.latency import measure_latency, nearest_case
from attnport.validate.latency_job import LatencyJob
from attnport.validate.latency_result import measurements_from_samples
from attnport.validate.latency_stats import (
    Ratio,
    is_difference,
    ratio_of_medians,
    resolution,
    summary,
)
from attnport.validate.latency_turns import take_turns, warm_up

ROUNDS, RUNS = 21, 10


def samples(median_us: float, seed: int, drift: np.ndarray | None = None) -> np.ndarray:
    """(R, k) skewed latencies, as they are: a floor and a tail."""
    draws = np.random.default_rng(seed)
    found = median_us * (0.96 + draws.gamma(2.0, 0.025, (ROUNDS, RUNS)))
    return found if drift is None else found * drift


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("latency") / "small")


def job(bundle: Bundle) -> LatencyJob:
    return LatencyJob(
        bundle=str(bundle.path), kinds=("torch-eager", "torch-sdpa", "ort-cpu"), case="b2n7",
        seconds=1, rounds=ROUNDS, threads=2, seed=0,
    )  # fmt: skip


def test_same_engine_twice_is_no_difference() -> None:
    held = [
        ratio_of_medians(samples(100, 2 * seed), samples(100, 2 * seed + 1), seed=seed).holds_one
        for seed in range(20)
    ]
    assert sum(held) >= 17  # 19 of 20 are expected of a 95% interval


def test_fifth_slower_is_found() -> None:
    ratio = ratio_of_medians(samples(120, 1), samples(100, 2))
    assert ratio.low < 1.2 < ratio.high
    assert is_difference(ratio, resolution(Ratio(1.0, 0.97, 1.03)))


def test_drift_that_all_share_does_not_hide_a_difference() -> None:
    drift = np.random.default_rng(3).uniform(1, 3, (ROUNDS, 1))
    ratio = ratio_of_medians(samples(120, 1, drift), samples(100, 2, drift))
    assert is_difference(ratio, 1.0)


def test_difference_within_the_a_a_interval_is_none() -> None:
    ratio = Ratio(1.06, 1.04, 1.08)
    assert is_difference(ratio, 1.0)
    assert not is_difference(ratio, resolution(Ratio(1.02, 0.99, 1.05)))
    assert not is_difference(Ratio(0.94, 0.92, 0.96), resolution(Ratio(1.02, 0.99, 1.05)))


def test_resolution_of_an_a_a_test_in_either_direction() -> None:
    assert resolution(Ratio(0.9, 0.8, 0.95)) == pytest.approx(1.25)
    assert resolution(Ratio(1.0, 1.0, 1.0)) == 1.0


def test_rounds_must_pair() -> None:
    with pytest.raises(ValueError, match="do not pair"):
        ratio_of_medians(samples(1, 1), samples(1, 2)[:-1])


def test_summary_counts_every_run() -> None:
    found = summary(np.arange(1, 101, dtype=float).reshape(10, 10))
    assert found == {"median_us": 50.5, "p10_us": 10.9, "p90_us": 90.1, "p99_us": 99.01,
                     "samples": 100}  # fmt: skip


def test_measurements_are_against_the_fastest_torch_form(bundle: Bundle) -> None:
    found = measurements_from_samples(
        bundle,
        job(bundle),
        {
            "torch-eager": samples(200, 1),
            "torch-sdpa": samples(100, 2),
            "ort-cpu": samples(80, 3),
            "A/A": samples(200, 4),
        },
        "torch-eager",
    )
    eager, sdpa, ort, same = found
    assert sdpa.note == "the fastest torch form"
    assert "ratio" not in sdpa.values
    assert eager.note.startswith("takes 2.0")
    assert ort.note.endswith("times as fast as torch-sdpa")
    assert ort.values["reference"] == "torch-sdpa"
    assert ort.values["ratio"] == pytest.approx(0.8, rel=0.05)
    assert ort.values["eager_ratio"] == pytest.approx(0.4, rel=0.05)
    assert ort.values["threads"] == 2
    assert same.note.startswith("A/A test: torch-eager entered twice")
    assert same.engine == "torch-eager"


def test_noisy_machine_is_said(bundle: Bundle) -> None:
    found = measurements_from_samples(
        bundle,
        job(bundle),
        {"torch-eager": samples(100, 1), "ort-cpu": samples(110, 2), "A/A": samples(130, 3)},
        "torch-eager",
    )
    assert found[1].note.startswith("no difference from torch-eager within ")
    assert "the machine was too noisy" in found[1].note
    assert "too noisy" in found[2].note


def test_without_a_torch_form_there_is_no_ratio(bundle: Bundle) -> None:
    (only,) = measurements_from_samples(bundle, job(bundle), {"ort-cpu": samples(100, 1)}, None)
    assert only.note == "no torch form to compare with: add one, such as -e torch-eager"
    assert "ratio" not in only.values


def test_every_engine_takes_its_turn_in_every_round() -> None:
    order: list[str] = []

    def run(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    names = ("a", "b", "c")
    found = take_turns({n: run(n) for n in names}, dict.fromkeys(names, 1e9), 60, 9, seed=0)
    assert {name: latencies.shape for name, latencies in found.items()} == {
        "a": (9, 1), "b": (9, 1), "c": (9, 1)}  # fmt: skip
    rounds = [tuple(order[i : i + 3]) for i in range(0, 27, 3)]
    assert all(sorted(one) == list(names) for one in rounds)
    assert len(set(rounds)) > 1


def test_warm_up_ends() -> None:
    runs: list[None] = []
    assert warm_up(lambda: runs.append(None)) >= 0
    assert len(runs) >= 3


def test_half_precision_and_gpus_are_left_out(bundle: Bundle, tmp_path: Path) -> None:
    half = make_bundle(tmp_path / "half", "float16")
    found = measure_latency(half, ["ort-cpu", "torch-eager"])
    assert found.measurements == ()
    assert "emulated" in found.left_out["ort-cpu"]
    found = measure_latency(bundle, ["tensorrt-rtx"])
    assert found.measurements == ()
    assert "GPU" in found.left_out["tensorrt-rtx"]


def test_case_nearest_to_opt_is_taken(bundle: Bundle) -> None:
    assert nearest_case(bundle).name == "b2n7"
    odd = [
        record.model_copy(update={"magnitude": "denormal"}) if record.name == "b2n7" else record
        for record in bundle.manifest.cases
    ]
    manifest = bundle.manifest.model_copy(update={"cases": tuple(odd)})
    assert nearest_case(replace(bundle, manifest=manifest)).name == "b3n16"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 1}, "at least 2 rounds"),
        ({"seconds": 0.0}, "more than 0 seconds"),
        ({"case": "nine"}, "has no case 'nine'"),
        ({"kinds": ["ort-gpu"]}, "no engine 'ort-gpu'"),
    ],
)
def test_bad_input_is_named(bundle: Bundle, wrong: dict[str, object], said: str) -> None:
    asked: dict[str, object] = {"kinds": ["ort-cpu"]}
    with pytest.raises(UsageError, match=said):
        measure_latency(bundle, **asked | wrong)  # type: ignore[arg-type]
