"""Ours against the real tritonserver (python backend), on the same bundle, alternating in one run.

make bench-serve, or python -m benchmarks.serve.run [--seconds 4] [--rounds 5], from the repository's
root. Writes results.json and results.md beside this file. It measures and asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.serve.load import Load, run_load, write_load
from benchmarks.serve.overhead import check_us, endpoint_us, engine_us
from benchmarks.serve.results import write_results
from tests.serve.bundles import identity_bundle
from tests.serve.process import serve_process
from tests.serve.tritonserver import tritonserver

from attnport import open_engine
from attnport.export.bundle import Bundle
from attnport.models.registry import resolve
from attnport.pipeline_run import bundle_from_spec
from attnport.serve.open_models import Source
from attnport.serve.repository.config_from_bundle import RepositoryOptions
from attnport.serve.repository.write import write_repository
from attnport.validate.machine import this_machine

MODEL = "multi-head-512-8"
TOKENS = 128
SEED = 0


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=4.0, help="of each go")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--users", type=int, nargs="+", default=[1, 4, 8, 16])
    options = arguments.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    with tempfile.TemporaryDirectory(prefix="attnport-bench-") as name:
        folder = Path(name)
        busy = [os.getloadavg()[0]]
        results: dict[str, Any] = {
            "machine": this_machine().model_dump(),
            "model": MODEL,
            "tokens": TOKENS,
            "seconds": options.seconds,
            "rounds": options.rounds,
            "overhead": _overhead(folder),
            "load": _compare(folder, options.users, options.seconds, options.rounds),
        }
    results["load_average"] = [*busy, os.getloadavg()[0]]
    write_results(results, Path(__file__).parent)


def _bundle(folder: Path) -> Bundle:
    return bundle_from_spec(resolve(MODEL), folder / MODEL, dtype="float32", max_cases=4)


def _compare(
    folder: Path, user_counts: list[int], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    bundle = _bundle(folder)
    draws = np.random.default_rng(SEED)
    x = draws.standard_normal((1, TOKENS, 512)).astype(np.float32)
    request = write_load(bundle, {"x": x}, MODEL, folder)
    found = []
    shuffle = random.Random(SEED)
    with _servers(bundle, folder) as urls:
        for url in urls.values():
            run_load(url, request, users=4, seconds=2)  # both are warm before anything counts
        for number in range(rounds):
            for users in user_counts:
                order = list(urls)
                shuffle.shuffle(order)
                loads = {}
                for name in order:
                    loads[name] = run_load(urls[name], request, users=users, seconds=seconds)
                    _tell(number, users, name, loads[name])
                found.append({"round": number, "users": users, **_as_json(loads)})
    return found


@contextmanager
def _servers(bundle: Bundle, folder: Path) -> Iterator[dict[str, str]]:
    """Ours, ours a second time (what no difference looks like), and tritonserver."""
    repository = folder / "repository"
    write_repository([Source(bundle.path)], repository, RepositoryOptions(backend="python"))
    with contextlib.ExitStack() as stack:
        urls = {}
        for name in ("attnport", "attnport again"):
            home = folder / name
            home.mkdir()
            words = (str(bundle.path), "--unproved")
            served = stack.enter_context(serve_process(home, *words))
            urls[name] = f"http://127.0.0.1:{served.port}"
        server = stack.enter_context(tritonserver(repository, folder / "triton"))
        yield {**urls, "tritonserver": server.url}


def _overhead(folder: Path) -> dict[str, Any]:
    """On y = x, where the engine itself takes next to nothing."""
    bundle = identity_bundle(folder / "identity", "float32")
    found: dict[str, Any] = {}
    with serve_process(folder, str(bundle.path), "--unproved", "--drain", "0") as served:
        for rows, tokens in ((1, 4), (8, 16)):
            x = np.ones((rows, tokens, 8), np.float32)
            with open_engine(bundle, "ort-cpu") as engine:
                alone = engine_us(engine, {"x": x}, 5000)
            through = endpoint_us(served.port, bundle.name, bundle, {"x": x}, 2000)
            found[f"{x.nbytes} bytes"] = {"engine_us": alone, "endpoint_us": through}
    feeds = {"x": np.ones((8, 16, 8), np.float32)}
    found["check_us"] = check_us(bundle, feeds)
    return found


def _as_json(loads: dict[str, Load]) -> dict[str, Any]:
    return {name: asdict(load) for name, load in loads.items()}


def _tell(number: int, users: int, name: str, load: Load) -> None:
    rate, latency = load.requests_per_second, load.percentiles_ms
    print(f"round {number}, {users} users, {name}: {rate:.1f}/s, {latency}", flush=True)


if __name__ == "__main__":
    main()
