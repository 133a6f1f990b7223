"""ONNX Runtime's latency of our graphs against the better of torch.onnx's own: `make zoo-latency`.

What is not exported yet, or by other code, is exported first; `--prepare` stops there, so that the
measurement itself (five minutes, on a machine that does nothing else) can wait for a quiet hour.
Every architecture is measured in a process of its own, one at a time.

    python -m benchmarks.zoo.latency [--prepare] [NAMES…]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

from benchmarks.zoo.latency_choice import CHOICES, Choice, is_prepared
from benchmarks.zoo.latency_measure import THREADS, LatencyRow, measure
from benchmarks.zoo.setting import this_setting

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / "build" / "zoo" / "latency"
ASKED_HIGH = 1.10
Result = TypeVar("Result")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.latency", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="some of the chosen architectures; all by default"
    )
    parser.add_argument("--prepare", action="store_true", help="export, and measure nothing")
    parser.add_argument("--threads", type=int, default=THREADS, help="of one session")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the exports are kept")
    parser.add_argument("--results", type=Path, default=HERE / "latency.json")
    asked = parser.parse_args()
    unknown = set(asked.names) - {choice.name for choice in CHOICES}
    if unknown:
        print(f"{sorted(unknown)} are not chosen: see latency_choice.py", file=sys.stderr)
        return 2
    choices = [c for c in CHOICES if not asked.names or c.name in asked.names]
    prepared = [choice for choice in choices if _prepared(choice, asked.cache)]
    if not asked.prepare:
        _measure_all(prepared, asked)
    return 0


def _prepared(choice: Choice, cache: Path) -> bool:
    """Whether there is something to measure; what cannot be exported is said and left out."""
    folder = cache / choice.name
    if is_prepared(choice, folder):
        return True
    start = time.perf_counter()
    try:
        _in_a_process(_prepare, choice, folder)
    except Exception as err:  # ours or the process's death: the others go on
        print(f"{choice.name}: not exported: {type(err).__name__}: {err}", flush=True)
        return False
    print(f"{choice.name}: exported in {time.perf_counter() - start:.0f} s", flush=True)
    return True


def _prepare(choice: Choice, folder: Path) -> None:
    from benchmarks.zoo.latency_prepare import prepare  # and with it torch, in this process alone

    prepare(choice, folder)


def _measure_all(choices: Sequence[Choice], asked: argparse.Namespace) -> None:
    start, load = time.perf_counter(), os.getloadavg()
    rows = []
    for choice in choices:
        row = _in_a_process(measure, choice.name, asked.cache / choice.name, asked.threads)
        rows.append(row)
        print(f"{choice.name}: {_said(row, row.better)}", flush=True)
    content = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": this_setting() | {"threads": str(asked.threads)},
        "load_before": [round(value, 2) for value in load],
        "seconds": round(time.perf_counter() - start, 1),
        "rows": [row.model_dump(mode="json") for row in rows],
    }
    asked.results.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    asked.results.with_suffix(".md").write_text(_markdown(choices, rows, content), "utf-8")


def _in_a_process(work: Callable[..., Result], *args: object) -> Result:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *args).result()


def _said(row: LatencyRow, opset: str) -> str:
    if opset not in row.ratios:
        return row.refusals.get(opset, "-")
    return "{:.2f} [{:.2f}, {:.2f}]".format(*row.ratios[opset])


def _markdown(
    choices: Sequence[Choice], rows: Sequence[LatencyRow], content: dict[str, object]
) -> str:
    setting = content["setting"]
    assert isinstance(setting, dict)
    better = [row.ratios[row.better] for row in rows if row.better]
    within = sum(high < ASKED_HIGH for _, _, high in better)
    mean = statistics.geometric_mean([value for value, _, _ in better])
    lines = [
        "# ONNX Runtime on the CPU: our graphs against the better of torch.onnx's",
        "",
        f"Written by `make zoo-latency` at {content['created']}, in {content['seconds']} s; load "
        f"averages before: {content['load_before']}; "
        + ", ".join(f"{name} {value}" for name, value in setting.items())
        + ". fp32. A ratio is of medians, ours over torch.onnx's, with its 95% bootstrap interval "
        "over rounds; A/A is ours against ours. Below 1 ours is faster.",
        "",
        "| | asked | found |",
        "|---|---|---|",
        f"| upper end of the interval, against the better export | under {ASKED_HIGH:.2f} for each "
        f"| {within} of {len(better)} |",
        f"| geometric mean of the ratios | under 1.0 | {mean:.3f} |",
        "",
        "| architecture | stands for | inputs | ours, µs | better | against it | 18 | 23 | A/A |",
        "|" + "---|" * 9,
    ]
    why = {choice.name: choice.why for choice in choices}
    for row in rows:
        shapes = ", ".join("x".join(map(str, shape)) for shape in row.shapes.values())
        said = [_said(row, opset) for opset in (row.better, "18", "23", "same")]
        cells = (row.name, why[row.name], shapes, f"{row.median_us['ours']:.0f}", row.better)
        lines.append("| " + " | ".join((*cells, *said)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
