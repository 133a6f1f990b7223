"""Random kills during build and export: is a half-written file ever taken for a whole one?

Each try forks a process that has everything imported, so that the kill falls into the work, kills
it with SIGKILL after a random time (for builds, half of the tries kill TensorRT's process instead),
and looks at what lies there. A bundle or a plan must be whole, by every hash, or not be one.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from attnport.engines.build import build_engine
from attnport.engines.plan_file import load_plan, plan_path
from attnport.errors import BundleError
from attnport.export.bundle import Bundle

RTX = "tensorrt-rtx"
_MODEL = "registry:multi-head{d_model=64,num_heads=2}"
_VANISH_SECONDS = 10.0


def measure_kills(folder: Path, tries: int, seed: int = 0) -> dict[str, object]:
    """Half of the tries are builds, half are exports.

    Args:
        folder: A new one.
        tries: How many.
        seed: Of the times.
    """
    draws = random.Random(seed)
    folder.mkdir(parents=True)
    whole = folder / "whole"
    _load_everything()
    _wait(_fork(lambda: _export(whole)))
    bundle = Bundle.load(whole)
    _wait(_fork(lambda: build_engine(bundle, RTX)))
    wanted = load_plan(plan_path(whole, RTX)).plan_sha256
    outcomes: Counter[str] = Counter()
    outcomes.update(_kill_builds(bundle, folder / "plans", wanted, tries // 2, draws))
    outcomes.update(_kill_exports(folder, bundle.hash, tries - tries // 2, draws))
    return {"tries": tries, "seed": seed, **dict(sorted(outcomes.items()))}


def _kill_builds(
    bundle: Bundle, out: Path, wanted: str | None, tries: int, draws: random.Random
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    start = time.perf_counter()
    _wait(_fork(lambda: build_engine(bundle, RTX, out=out)))
    span = 1.2 * (time.perf_counter() - start)
    for number in range(tries):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        process = _fork(lambda: build_engine(bundle, RTX, out=out))
        _kill_after(process, draws.uniform(0, span), builder=number % 2 == 1)
        outcomes[f"build: {_plan_state(out, wanted)}"] += 1
        outcomes["build: left something"] += not _clean(out)
        print(f"\rbuild {number + 1}: {dict(outcomes)}", end="", flush=True)
    print()
    shutil.rmtree(out, ignore_errors=True)
    _wait(_fork(lambda: build_engine(bundle, RTX, out=out)))
    outcomes["build: works afterwards"] += _plan_state(out, wanted) == "a whole plan"
    return outcomes


def _kill_exports(folder: Path, wanted: str, tries: int, draws: random.Random) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    out = folder / "export"
    start = time.perf_counter()
    _wait(_fork(lambda: _export(out)))
    span = 1.2 * (time.perf_counter() - start)
    for number in range(tries):
        if number % 2:
            shutil.rmtree(out, ignore_errors=True)  # else an earlier bundle is replaced
        process = _fork(lambda: _export(out))
        _kill_after(process, draws.uniform(0, span), builder=False)
        outcomes[f"export: {_bundle_state(out, wanted)}"] += 1
        print(f"\rexport {number + 1}: {dict(outcomes)}", end="", flush=True)
    print()
    _wait(_fork(lambda: _export(out)))
    outcomes["export: works afterwards"] += _bundle_state(out, wanted) == "a whole bundle"
    return outcomes


def _load_everything() -> None:
    """Imports, and runs nothing: a process with running threads cannot be forked safely."""
    import attnport.engines.trt_build
    import attnport.export.export_module
    import attnport.models.sources
    import attnport.pipeline_run  # noqa: F401 - loaded for the processes to come


def _export(out: Path) -> None:
    import torch

    torch.set_num_threads(1)
    from attnport.models.sources import spec_from_source
    from attnport.pipeline_run import bundle_from_spec

    bundle_from_spec(spec_from_source(_MODEL), out, dtype="float16", max_cases=2)


def _fork(work: Callable[[], object]) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    with contextlib.suppress(BaseException):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        work()
        status = 0
    os._exit(status)


def _kill_after(process: int, seconds: float, *, builder: bool) -> None:
    time.sleep(seconds)
    target = process
    if builder:
        children = psutil.Process(process).children() if psutil.pid_exists(process) else []
        target = children[0].pid if children else process
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, signal.SIGKILL)
    _wait(process)


def _wait(process: int) -> None:
    os.waitpid(process, 0)


def _plan_state(out: Path, wanted: str | None) -> str:
    try:
        found = load_plan(plan_path(out, RTX), rehash=True)
    except BundleError:
        return "no plan"
    return "a whole plan" if found.plan_sha256 == wanted else "A WRONG PLAN"


def _bundle_state(out: Path, wanted: str) -> str:
    try:
        found = Bundle.load(out, rehash=True)
    except BundleError:
        return "no bundle"
    return "a whole bundle" if found.hash == wanted else "A WRONG BUNDLE"


def _clean(out: Path) -> bool:
    """TensorRT's process learns that its parent is gone, and takes its folder with it."""
    deadline = time.monotonic() + _VANISH_SECONDS
    while time.monotonic() < deadline:
        if not list(out.glob(".*")):
            return True
        time.sleep(0.02)
    return False
