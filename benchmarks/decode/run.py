"""Time per token against past length: growing and static caches, and PyTorch with its own.

    make bench-decode          all lengths: a few minutes

All take turns in an order that is shuffled in each round, waiting threads sleep, and one form of
PyTorch is entered twice (the A/A test). A turn goes back to the past length, runs one token untimed
and then some that are timed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

SLEEPY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
LENGTHS = (64, 128, 256, 512, 1024, 2048)
TOKENS, ROUNDS = 6, 21
HERE = Path(__file__).parent


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--out", type=Path, default=HERE / "results.json")
    arguments.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if not given.inner:
        # OpenMP reads these when it starts, which is before Python can set them.
        again = [sys.executable, "-m", "benchmarks.decode.run", "--inner", *sys.argv[1:]]
        sys.exit(subprocess.call(again, env=os.environ | SLEEPY))
    _measure(given.lengths, given.rounds, given.out)


def _measure(lengths: list[int], rounds: int, out: Path) -> None:
    import torch
    from benchmarks.decode.report import write_report
    from benchmarks.decode.setting import THREADS, export

    load = os.getloadavg()[0]
    torch.set_num_threads(THREADS)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        growing, static = (
            export(Path(folder) / name, static=name == "static") for name in ("growing", "static")
        )
        with torch.inference_mode():
            rows = [_row(growing, static, length, rounds) for length in lengths]
    content = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - start),
        "setting": _setting(load),
        "rows": rows,
    }
    write_report(out, content)


def _row(growing: object, static: object, length: int, rounds: int) -> dict[str, object]:
    """Every contestant at one past length."""
    import numpy as np
    from benchmarks.decode.setting import OfSession, buckets, contestants

    from attnport.validate.latency_stats import ratio_of_medians, summary
    from attnport.validate.latency_turns import take_turns

    made = {name: make() for name, make in contestants(growing, static, length).items()}  # type: ignore[arg-type]
    apart = _agreement(list(made.values()))
    runs = {name: (lambda one=one: one) for name, one in made.items()}
    samples = take_turns(
        runs, dict.fromkeys(runs, 1.0), len(runs) * rounds * TOKENS, rounds, length, _turn
    )
    found: dict[str, object] = {}
    for name, one in made.items():
        ratio = ratio_of_medians(samples[name], samples["torch preallocated"])
        found[name] = summary(samples[name]) | {
            "ratio": [round(v, 3) for v in (ratio.value, ratio.low, ratio.high)],
            "cat_ratio": round(
                float(np.median(samples[name]) / np.median(samples["torch cat"])), 3
            ),
        }
        if isinstance(one, OfSession):
            found[name]["copied"] = vars(one.session.copied)  # type: ignore[index]
            one.session.close()
    print(length, {n: f"{f['median_us'] / 1e3:.2f} ms" for n, f in found.items()}, flush=True)  # type: ignore[index]
    return {"past": length, "capacity": buckets(length), "apart": apart, "found": found}


def _turn(run: object, count: int) -> list[float]:
    """Latencies of some tokens in microseconds, from the past length on."""
    one = run()  # type: ignore[operator]
    one.reset()
    one.step(1)
    found = []
    for token in range(2, 2 + count):
        start = time.perf_counter_ns()
        one.step(token)
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


def _agreement(made: list[object]) -> float:
    """The largest difference between logits of any two, as a part of the largest logit."""
    import numpy as np

    logits = []
    for one in made:
        one.reset()  # type: ignore[attr-defined]
        steps = [np.asarray(one.step(token)) for token in (1, 2, 3)]  # type: ignore[attr-defined]
        logits.append(np.concatenate(steps, axis=1))
    largest = max(float(np.abs(one).max()) for one in logits)
    return max(float(np.abs(one - logits[0]).max()) for one in logits) / largest


def _setting(load: float) -> dict[str, object]:
    from benchmarks.decode.setting import LAYERS, THREADS, VOCABULARY, D, H

    from attnport.validate.machine import this_machine

    machine = this_machine()
    versions = {n: machine.versions[n] for n in ("torch", "onnxruntime") if n in machine.versions}
    return {
        "cpu": machine.cpu,
        "cores": machine.cores,
        "threads": THREADS,
        "load_before": round(load, 1),
        "versions": versions,
        "model": f"D={D} H={H}, {LAYERS} layers, vocabulary {VOCABULARY}, fp32, batch 1",
    }


if __name__ == "__main__":
    main()
