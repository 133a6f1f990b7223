"""Measures what `latency_prepare` has written, in a process that loads no torch.

The traps of such a comparison are avoided as `attnport.validate.latency_turns` does it: waiting
threads sleep, sessions take turns in an order that is shuffled in each round, and ours is entered
twice (the A/A test), which tells what the method cannot tell from no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attnport.engines.ort_session import create_session
from attnport.export.records import Record
from attnport.validate.latency_stats import ratio_of_medians
from attnport.validate.latency_turns import Run, take_turns, warm_up

SECONDS, ROUNDS, THREADS = 2.5, 40, 2
Interval = tuple[float, float, float]


class LatencyRow(Record):
    """What was measured of one architecture.

    Attributes:
        name: Its name.
        shapes: Of the inputs.
        median_us: Of one run, by graph: "ours", "18" and "23".
        ratios: Ours over each stock export, and "same" for ours over ours: value, low, high of
            the 95% interval.
        refusals: Why a stock export is absent.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    median_us: dict[str, float]
    ratios: dict[str, Interval]
    refusals: dict[str, str]

    @property
    def better(self) -> str:
        """The opset of the faster stock export; "" where none runs."""
        medians = {name: us for name, us in self.median_us.items() if name != "ours"}
        return min(medians, key=lambda name: medians[name], default="")


def measure(name: str, folder: Path, threads: int) -> LatencyRow:
    """Lets ours, ours again and the stock exports take turns.

    Args:
        name: The architecture.
        folder: What `prepare` has written.
        threads: Of each session.
    """
    with np.load(folder / "feeds.npz") as stored:
        feeds = {key: stored[key] for key in stored.files}
    ours = folder / (folder / "ours.txt").read_text("utf-8")
    runs = {"ours": _run(ours, feeds, threads), "same": _run(ours, feeds, threads)}
    refusals = {}
    for home in sorted(folder.glob("stock*")):
        opset = home.name.removeprefix("stock")
        refusal = home / "refusal.txt"
        if refusal.is_file():
            refusals[opset] = refusal.read_text("utf-8")
            continue
        try:
            run = _run(home / "model.onnx", feeds, threads)
            run()
        except Exception as err:  # ONNX Runtime's errors have no common base
            refusals[opset] = f"run: {str(err).splitlines()[0][:200]}"
            continue
        runs[opset] = run
    return _row(name, {key: a.shape for key, a in feeds.items()}, _samples(runs), refusals)


def _samples(runs: Mapping[str, Run]) -> dict[str, np.ndarray]:
    seconds = {name: warm_up(run) for name, run in runs.items()}
    return take_turns(runs, seconds, SECONDS * len(runs), ROUNDS, seed=0)


def _row(
    name: str,
    shapes: dict[str, tuple[int, ...]],
    samples: Mapping[str, np.ndarray],
    refusals: dict[str, str],
) -> LatencyRow:
    ratios = {}
    for other in sorted(set(samples) - {"ours"}):
        found = ratio_of_medians(samples["ours"], samples[other])
        ratios[other] = (round(found.value, 4), round(found.low, 4), round(found.high, 4))
    medians = {key: round(float(np.median(s)), 1) for key, s in samples.items() if key != "same"}
    return LatencyRow(
        name=name, shapes=shapes, median_us=medians, ratios=ratios, refusals=refusals
    )


def _run(path: Path, feeds: Mapping[str, np.ndarray], threads: int) -> Run:
    session = create_session(path, None, "CPUExecutionProvider", threads=threads)
    return lambda: session.run(None, dict(feeds))
