"""`make mutants`: every fault in every model and dtype, written beside the calibration.

Exits 1 where a fault was missed or a good engine was accused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from tests.validate.mutants.subjects import DTYPES, SUBJECTS
from tests.validate.mutants.trial import FAULTS, Bed, Trial

from attnport.validate.machine import this_machine

OUT = Path(__file__).parents[3] / "benchmarks" / "validate"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=OUT)
    arguments.add_argument("--dtype", action="append", choices=DTYPES)
    arguments.add_argument("--model", action="append", choices=tuple(SUBJECTS))
    arguments.add_argument(
        "--add", action="store_true", help="Keep what is written there of other models and dtypes."
    )
    given = arguments.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    trials: list[Trial] = []
    good: list[Trial] = []
    for dtype in given.dtype or DTYPES:
        for model in given.model or SUBJECTS:
            with tempfile.TemporaryDirectory() as folder:
                bed = Bed(model, dtype, Path(folder))
                good.append(bed.good_trial())
                trials += [t for f in bed.faults() if (t := bed.trial(f)) is not None]
            print(f"{dtype} {model}: {len(trials)} trials", flush=True)
    seconds = time.perf_counter() - start
    if given.add:
        done = {(t.dtype, t.model) for t in good}
        kept, kept_good, before = _kept(given.out, done)
        trials, good, seconds = kept + trials, kept_good + good, before + seconds
    missed = [t for t in trials if not t.caught]
    alarms = [t for t in good if t.caught]
    for trial in (*missed, *alarms):
        print("MISSED" if trial in missed else "FALSE ALARM", trial)
    _write(given.out, trials, good, seconds)
    unused = sorted(set(FAULTS) - {t.fault for t in trials})
    print(f"{len(trials)} trials of {len(FAULTS)} faults, {len(missed)} missed, "
          f"{len(alarms)} false alarms; without a model: {unused or 'none'}")  # fmt: skip
    return int(bool(missed or alarms or unused))


def _kept(out: Path, done: set[tuple[str, str]]) -> tuple[list[Trial], list[Trial], float]:
    """What was written of other models and dtypes than those done now, and the seconds of all."""
    content = json.loads((out / "mutants.json").read_text("utf-8"))
    trials, good = (
        [Trial(**one) for one in content[name] if (one["dtype"], one["model"]) not in done]
        for name in ("trials", "good")
    )
    return trials, good, float(content["seconds"])


def _write(out: Path, trials: list[Trial], good: list[Trial], seconds: float) -> None:
    machine = this_machine()
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "seconds": round(seconds),
        "faults": len({t.fault for t in trials}),
        "missed": [asdict(t) for t in trials if not t.caught],
        "false_alarms": [asdict(t) for t in good if t.caught],
        "good": [asdict(t) for t in good],
        "trials": [asdict(t) for t in trials],
        "machine": machine.model_dump(),
    }
    (out / "mutants.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    lines = [
        "# Faults planted, and whether they were caught",
        "",
        f"`make mutants`, {seconds:.0f} s on {machine.cpu}, {machine.cores} cores, "
        + ", ".join(f"{n} {v}" for n, v in machine.versions.items() if n != "attnport"),
        "",
        f"{len({t.fault for t in trials})} faults, {len(trials)} trials, "
        f"{sum(not t.caught for t in trials)} missed; {len(good)} good engines, "
        f"{sum(t.caught for t in good)} accused. A cell says in how many models a fault was "
        "caught, of those it applies to.",
        "",
        "| fault | " + " | ".join(DTYPES) + " | caught first by |",
        "|---|" + "---|" * (len(DTYPES) + 1),
    ]
    for fault in FAULTS:
        mine = [t for t in trials if t.fault == fault]
        cells = []
        for dtype in DTYPES:
            here = [t for t in mine if t.dtype == dtype]
            cells.append(f"{sum(t.caught for t in here)}/{len(here)}" if here else "-")
        by = sorted({t.by.split()[0] for t in mine if t.by})
        lines.append(f"| {fault} | {' | '.join(cells)} | {', '.join(by)} |")
    (out / "mutants.md").write_text("\n".join([*lines, ""]), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
