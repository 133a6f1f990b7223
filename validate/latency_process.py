"""Runs the process that measures latency, and copes with its death."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.errors import ModuleError
from attnport.validate.latency_job import (
    JOB,
    MODULE,
    OUTCOME,
    SAMPLES,
    STAGE,
    LatencyJob,
    LatencyOutcome,
)
from attnport.validate.latency_module import main_file, pickle_module, stray_files
from attnport.validate.stock_export import STOCK

if TYPE_CHECKING:
    import torch

# GNU, Intel and LLVM OpenMP: sleep at once instead of spinning when there is nothing to do.
_SLEEPY_THREADS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}
# The measuring process finds the same modules as this one, attnport first of all.
_CHILD = """\
import json, pathlib, sys
sys.path[:] = json.loads(sys.argv[1])
from attnport.validate.latency_child import main
main(pathlib.Path(sys.argv[2]))
"""
# Opening and compiling take minutes at worst; beyond this the process hangs.
_TIMEOUT_SECONDS = 900.0


def samples_from_job(
    job: LatencyJob, module: torch.nn.Module | None, folder: Path
) -> tuple[dict[str, np.ndarray], LatencyOutcome]:
    """Runs the measuring process, again without an engine that took it down.

    Args:
        job: What to measure.
        module: The module that is pickled for it; None where the job needs none or makes it.
        folder: An empty one, for the two processes alone.

    Returns:
        (R, k) latencies in microseconds of each entry, and what was left out and why.
    """
    job, left_out = _with_module(job, module, folder)
    while job.kinds:
        reason = _run_child(job, folder)
        if reason is None:
            outcome = LatencyOutcome.model_validate_json((folder / OUTCOME).read_text("utf-8"))
            with np.load(folder / SAMPLES) as stored:
                samples = {name: stored[name] for name in stored.files}
            return samples, outcome.model_copy(update={"left_out": left_out | outcome.left_out})
        stage = folder / STAGE
        guilty = stage.read_text("utf-8") if stage.is_file() else ""
        if guilty == STOCK:
            left_out[STOCK] = reason
            job = job.model_copy(update={"stock": False})
            stage.unlink(missing_ok=True)
            continue
        fallen = [guilty] if guilty in job.kinds else list(job.kinds)
        left_out |= dict.fromkeys(fallen, reason)
        job = _without(job, fallen)
        stage.unlink(missing_ok=True)
    return {}, LatencyOutcome(same_as=None, left_out=left_out)


def _with_module(
    job: LatencyJob, module: torch.nn.Module | None, folder: Path
) -> tuple[LatencyJob, dict[str, str]]:
    """Packs the module; where that is impossible, takes the torch engines out of the job."""
    if module is None:
        return job, {}
    try:
        pickle_module(module, folder / MODULE)
    except ModuleError as err:
        torch_kinds = [kind for kind in job.kinds if kind.startswith("torch-")]
        return _without(job, torch_kinds), dict.fromkeys(torch_kinds, str(err))
    update = {"has_module": True, "stray_files": stray_files(), "main_file": main_file()}
    return job.model_copy(update=update), {}


def _without(job: LatencyJob, kinds: Sequence[str]) -> LatencyJob:
    return job.model_copy(update={"kinds": tuple(k for k in job.kinds if k not in kinds)})


def _run_child(job: LatencyJob, folder: Path) -> str | None:
    """Runs the job in a process of its own; returns how it died, None where it did not."""
    (folder / JOB).write_text(job.model_dump_json(), "utf-8")
    threads = {"OMP_NUM_THREADS": str(job.threads), "MKL_NUM_THREADS": str(job.threads)}
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), str(folder)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | _SLEEPY_THREADS | threads,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS + 10 * job.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        return f"the measuring process did not finish within {err.timeout:.0f} seconds"
    if done.returncode == 0 and (folder / OUTCOME).is_file():
        return None
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
    return f"the measuring process died ({how}): {said[0] if said else 'it left no message'}"
