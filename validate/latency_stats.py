"""What latency samples say: percentiles, and the interval of a ratio of two engines' medians.

R rounds, k runs a round. Engines alternate within a round, so that what disturbed the machine in
a round disturbed all of them: rounds, not single runs, are what the bootstrap draws, and it draws
the same ones for both engines of a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """The median of one engine over that of another, with its bootstrap interval.

    Attributes:
        value: The ratio of the medians over all runs; below 1 the first engine is faster.
        low: Lower end of the 95% interval.
        high: Upper end of it.
    """

    value: float
    low: float
    high: float

    @property
    def holds_one(self) -> bool:
        return self.low <= 1.0 <= self.high


def summary(samples_us: np.ndarray) -> dict[str, float | int]:
    """Median, 10th, 90th and 99th percentile of all runs, in microseconds.

    Args:
        samples_us: (R, k) latencies.
    """
    p10, median, p90, p99 = np.percentile(samples_us, (10, 50, 90, 99))
    return {
        "median_us": round(float(median), 3),
        "p10_us": round(float(p10), 3),
        "p90_us": round(float(p90), 3),
        "p99_us": round(float(p99), 3),
        "samples": int(samples_us.size),
    }


def ratio_of_medians(samples_us: np.ndarray, reference_us: np.ndarray, *, seed: int = 0) -> Ratio:
    """Compares two engines that were measured in the same rounds.

    Args:
        samples_us: (R, k) latencies of the engine.
        reference_us: (R, k') latencies of the reference, in the same order of rounds.
        seed: Of the bootstrap's draws.

    Raises:
        ValueError: If the two have different numbers of rounds, or fewer than two.
    """
    rounds = len(samples_us)
    if rounds != len(reference_us) or rounds < 2:
        raise ValueError(f"rounds do not pair: {rounds} and {len(reference_us)}; give 2 or more")
    from scipy.stats import bootstrap  # type: ignore[import-untyped]

    def ratio(drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        rows = np.moveaxis(drawn, axis, -1)  # (…, R)
        quotient: np.ndarray = _median(samples_us, rows) / _median(reference_us, rows)
        return quotient

    # The percentile interval, since the acceleration of BCa is undefined for steps such as a
    # median's jackknife.
    found = bootstrap(
        (np.arange(rounds),),
        ratio,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=100,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = found.confidence_interval
    return Ratio(float(ratio(np.arange(rounds))), float(interval.low), float(interval.high))


def _median(samples_us: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The median over every run of the drawn rounds: (R, k) by (…, R) -> (…)."""
    drawn = samples_us[rows]  # (…, R, k)
    return np.asarray(np.median(drawn.reshape(*rows.shape[:-1], -1), axis=-1))


def resolution(same: Ratio) -> float:
    """How far apart two engines must be before it means anything, as a factor of at least 1.

    Args:
        same: The ratio of an engine to itself, entered twice (the A/A test).
    """
    return max(1.0, same.high, 1.0 / same.low)


def is_difference(ratio: Ratio, factor: float) -> bool:
    """Whether the whole interval lies beyond what the A/A test cannot tell from 1.

    Args:
        ratio: The comparison.
        factor: What `resolution` gave.
    """
    return ratio.low > factor or ratio.high < 1.0 / factor
