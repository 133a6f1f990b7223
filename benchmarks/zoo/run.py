"""Runs the zoo and writes the scoreboard: `python -m benchmarks.zoo.run [NAMES…]`, `make zoo`.

Each architecture has a process of its own, forked from one that has torch loaded. A row is written as
soon as it is known, and a run goes on where another one stopped: rows that this very code and these
versions gave are kept, unless one died or `--again` is said. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.catalogue import chosen
from benchmarks.zoo.code_version import code_version
from benchmarks.zoo.measure import DTYPES, Options, measure_to
from benchmarks.zoo.outcome import Outcome
from benchmarks.zoo.scoreboard import line_of, markdown
from benchmarks.zoo.setting import this_setting

from attnport.errors import UsageError

RESULTS = Path(__file__).parent / "results.json"
_TIMEOUT_SECONDS = 900


def main() -> int:
    asked = _arguments()
    try:
        entries = chosen(asked.names)
    except UsageError as err:
        print(err, file=sys.stderr)
        return 2
    options = Options(tuple(asked.dtypes.split(",")), not asked.no_stock)
    kept = _read(asked.results)
    if asked.draw:
        _write(asked.results, kept)
        return 0
    if not asked.again:
        entries = _unmeasured(entries, kept)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.zoo.measure", "transformers"])
    with ThreadPoolExecutor(asked.jobs) as pool:
        running = {pool.submit(_measured, context, entry, options): entry for entry in entries}
        for done in as_completed(running):
            entry, outcome = running[done], done.result()
            before = kept.get(entry.name)
            if before is not None:
                outcome = _with_kept(entry, outcome, before, options)
            kept[entry.name] = outcome
            print(line_of(entry, outcome), flush=True)
            _write(asked.results, kept)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.run", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures or families; all by default")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument(
        "--no-stock",
        action="store_true",
        help="keep what results.json says of torch.onnx's own exports, which we cannot change",
    )
    parser.add_argument("--jobs", type=int, default=2, help="architectures at a time")
    parser.add_argument(
        "--again", action="store_true", help="measure anew what this very code has measured, too"
    )
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing: draw results.md anew from the rows"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def _unmeasured(
    entries: Sequence[Architecture], kept: Mapping[str, Outcome]
) -> list[Architecture]:
    """Those without a row of this code; it says how many it leaves out."""
    done = {name for name, row in kept.items() if row.code == code_version() and not row.died}
    left = [entry for entry in entries if entry.name not in done]
    if len(left) < len(entries):
        print(
            f"{len(entries) - len(left)} of {len(entries)} were measured with this very code: "
            "their rows are kept (--again measures them anew)"
        )
    return left


def _measured(
    context: multiprocessing.context.ForkServerContext, entry: Architecture, options: Options
) -> Outcome:
    """A process that dies is tried once more."""
    outcome = _try(context, entry, options)
    if outcome.died:
        print(f"{entry.name}: {outcome.died}: tried once more", flush=True)
        outcome = _try(context, entry, options)
    return outcome.model_copy(update={"code": code_version()})


def _try(
    context: multiprocessing.context.ForkServerContext, entry: Architecture, options: Options
) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcome.json"
        child = context.Process(target=measure_to, args=(entry.name, path, options))
        child.start()
        child.join(_TIMEOUT_SECONDS)
        if child.exitcode is None:
            child.kill()
            child.join()
        outcome = Outcome(name=entry.name, died="starting")
        if path.is_file():
            outcome = Outcome.model_validate_json(path.read_text("utf-8"))
        if child.exitcode != 0:
            how = f"exit {child.exitcode} while {outcome.died or 'leaving'}"
            return outcome.model_copy(update={"died": how})
        return outcome


def _with_kept(
    entry: Architecture, outcome: Outcome, before: Outcome, options: Options
) -> Outcome:
    """Adds what this run was told to leave out."""
    asked = {entry.half if dtype == "float16" else dtype for dtype in options.dtypes}
    whole = asked >= {"float32", entry.half}
    kept = {} if whole else {d: row for d, row in before.dtypes.items() if d not in asked}
    stock = outcome.stock if options.stock else before.stock
    return outcome.model_copy(update={"dtypes": kept | outcome.dtypes, "stock": stock})


def _read(path: Path) -> dict[str, Outcome]:
    if not path.is_file():
        return {}
    stored = json.loads(path.read_text("utf-8"))["architectures"]
    return {name: Outcome.model_validate(found) for name, found in stored.items()}


def _write(path: Path, outcomes: dict[str, Outcome]) -> None:
    entries = [entry for entry in chosen(()) if entry.name in outcomes]
    content = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": this_setting(),
        "code": code_version(),
        "architectures": {e.name: outcomes[e.name].model_dump(mode="json") for e in entries},
    }
    _put(path, json.dumps(content, indent=1) + "\n")
    _put(path.with_suffix(".md"), markdown(entries, outcomes, content))


def _put(path: Path, text: str) -> None:
    """Whoever reads meanwhile, or goes on after a kill, finds a whole file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, "utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
