"""Measures the figures of engines/ and writes results.json and results.md beside this file.

    python -m benchmarks.engines.run                      the module, 8 layers, overhead
    python -m benchmarks.engines.run --kills 200          and random kills
    python -m benchmarks.engines.run --layers 32          32 layers: 13 GiB of memory, 9 of disk

What a run does not measure keeps the figures of the run before, each with its machine and date.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.engines.builds import measure_module, measure_stack
from benchmarks.engines.kills import measure_kills
from benchmarks.engines.overhead import measure_overhead

from attnport.validate.machine import this_machine

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, action="append", default=[])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="module, overhead")
    parser.add_argument("--folder", type=Path, help="where to work; the system's by default")
    asked = parser.parse_args()
    steps: dict[str, Callable[[Path], dict[str, object]]] = {}
    if not asked.only or "overhead" in asked.only:
        steps["overhead of ort-cpu"] = measure_overhead
    if not asked.only or "module" in asked.only:
        steps["one layer"] = measure_module
    for layers in asked.layers or ([] if asked.only else [8]):
        steps[f"{layers} layers"] = lambda folder, n=layers: measure_stack(folder, n)  # type: ignore[misc]  # the default binds it
    if asked.kills:
        steps["random kills"] = lambda folder: measure_kills(folder, asked.kills)
    for name, measure in steps.items():
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            os.environ["ATTNPORT_CACHE_DIR"] = f"{folder}/cache"
            print(f"{name} …", flush=True)
            figures = measure(Path(folder) / "work")
        _keep(name, figures)
        print(json.dumps(figures, indent=2), flush=True)


def _keep(name: str, figures: dict[str, object]) -> None:
    """Adds one step to the results and draws the table anew."""
    known = json.loads(_RESULTS.read_text("utf-8")) if _RESULTS.exists() else {}
    known[name] = {
        "figures": figures,
        "machine": this_machine().model_dump(),
        "load_before": os.getloadavg()[0],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    _RESULTS.write_text(json.dumps(known, indent=2) + "\n", "utf-8")
    (_HERE / "results.md").write_text(_markdown(known), "utf-8")


def _markdown(known: dict[str, dict[str, object]]) -> str:
    lines = [
        "# Engines: what was measured",
        "",
        "Written by `python -m benchmarks.engines.run`; the JSON beside it holds every digit. Other",
        "work ran on the machine meanwhile where the load says so.",
    ]
    for name, step in known.items():
        machine, figures = step["machine"], step["figures"]
        assert isinstance(machine, dict)
        assert isinstance(figures, dict)
        versions = machine["versions"]
        shown = ", ".join(
            f"{library} {versions[library]}"
            for library in ("tensorrt-rtx-cu13", "onnxruntime", "torch")
            if library in versions
        )
        lines += ["", f"## {name}", "", f"{step['created']}, {machine['cpu']}, "
                  f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, load "
                  f"{step['load_before']:.1f}; {shown}", "", "| figure | |", "|---|---|"]  # fmt: skip
        lines += [
            f"| {key.replace('_', ' ')} | {_cell(value)} |" for key, value in figures.items()
        ]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
