"""Engines take turns: warmed up first, then round by round, in an order that is shuffled."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Bounds of the warm-up: blocks of runs until two in a row agree, but neither endless nor none.
WARM_SECONDS = 1.5
WARM_BLOCK = 5
WARM_AGREEMENT = 0.05
# More runs in one turn than this sharpen nothing: rounds are what the interval is drawn from.
MOST_RUNS = 100
# Slow engines get fewer rounds, never less than this, once this many times the seconds are over.
LEAST_ROUNDS = 7
OVERTIME = 3.0

Run = Callable[[], object]
# Gives the latencies of so many runs in microseconds.
Turn = Callable[[Any, int], list[float]]


def take_turns(
    runs: Mapping[str, Run],
    run_seconds: Mapping[str, float],
    seconds: float,
    rounds: int,
    seed: int,
    turn: Turn | None = None,
) -> dict[str, np.ndarray]:
    """Lets every engine take its turn in every round.

    Args:
        runs: What one run of each engine is.
        run_seconds: About how long it takes, from the warm-up.
        seconds: About how long to measure altogether.
        rounds: R, how many turns each engine gets.
        seed: Of the order in each round.
        turn: What times the runs; by default this process's clock.

    Returns:
        (R, k) latencies in microseconds for each engine; k is its own, R the same for all, and
        fewer than asked for where the engines are slow.
    """
    timed = turn or clock_turn
    share = seconds / (rounds * max(len(runs), 1))
    counts = {name: _runs_in(share, run_seconds[name], most=MOST_RUNS) for name in runs}
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    order = np.random.default_rng(seed)
    names = list(runs)
    start = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for done in range(rounds):
            if done >= LEAST_ROUNDS and time.perf_counter() - start > OVERTIME * seconds:
                break
            for place in order.permutation(len(names)):
                name = names[place]
                found[name].append(timed(runs[name], counts[name]))
    finally:
        gc.enable()
    return {name: np.array(turns) for name, turns in found.items()}


def _runs_in(turn_seconds: float, run_seconds: float, *, most: int) -> int:
    return int(np.clip(turn_seconds / max(run_seconds, 1e-9), 1, most))


def clock_turn(run: Run, count: int) -> list[float]:
    """Latencies of `count` runs in microseconds."""
    if count > 3:
        run()  # the caches still hold the previous engine's weights
    latencies = []
    for _ in range(count):
        start = time.perf_counter_ns()
        run()
        latencies.append((time.perf_counter_ns() - start) / 1e3)
    return latencies


def warm_up(run: Run, turn: Turn | None = None) -> float:
    """Runs until two blocks of runs in a row have like medians, or the time for it is over.

    Args:
        run: What one run is.
        turn: What times the runs; by default this process's clock.

    Returns:
        About how many seconds one run takes.
    """
    timed = turn or clock_turn
    start = time.perf_counter()
    run()  # the first one may compile or allocate
    block = _runs_in(WARM_SECONDS / 3, timed(run, 1)[0] / 1e6, most=WARM_BLOCK)
    before = np.inf
    while True:
        median = float(np.median(timed(run, block))) / 1e6
        settled = abs(median - before) <= WARM_AGREEMENT * median
        if settled or time.perf_counter() - start > WARM_SECONDS:
            return median
        before = median
