"""The process that measures: opens every engine, warms it up, and lets them take turns.

It is started by `attnport.validate.latency` with waiting threads told to sleep: threads of one
engine that spin on after its turn slow the next one down, by factors, not percents.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.open import open_engine
from attnport.errors import AttnportError, EngineUnavailableError
from attnport.export.bundle import Bundle
from attnport.validate.latency_device import DeviceEngines
from attnport.validate.latency_job import (
    JOB,
    MODULE,
    OUTCOME,
    SAME,
    SAMPLES,
    STAGE,
    LatencyJob,
    LatencyOutcome,
)
from attnport.validate.latency_module import make_module, unpickle_module
from attnport.validate.latency_turns import Run, Turn, clock_turn, take_turns, warm_up
from attnport.validate.stock_export import STOCK, open_stock

if TYPE_CHECKING:
    import torch

    from attnport.engines.engine import Engine


def main(folder: Path) -> None:
    """Measures the job in the folder and leaves samples and outcome beside it."""
    job = LatencyJob.model_validate_json((folder / JOB).read_text("utf-8"))
    field = _Field(folder, job)
    for kind in job.kinds:
        field.enter(kind, kind)
    if job.stock:
        field.enter(STOCK, STOCK)
    same_as = next((kind for kind in (job.eager, *field.runs) if kind in field.runs), None)
    if same_as is not None:
        field.enter(SAME, same_as)
    runs = field.runs
    samples = take_turns(runs, field.run_seconds, job.seconds, job.rounds, job.seed, field.turn)
    np.savez(folder / SAMPLES, **samples)  # type: ignore[arg-type]  # keywords are arrays here
    outcome = LatencyOutcome(
        same_as=same_as if SAME in samples else None,
        left_out=field.left_out,
        facts=field.on_device.facts() if field.on_device else {},
        note=field.on_device.rotation.words if field.on_device else "",
    )
    (folder / OUTCOME).write_text(outcome.model_dump_json(), "utf-8")


class _Field:
    """The engines that compete, opened and warm.

    Attributes:
        runs: What one run of each is.
        run_seconds: About how long it takes.
        left_out: Why the others do not take part.
        on_device: What opens them on a device; None on the CPU.
        turn: What times them.
    """

    def __init__(self, folder: Path, job: LatencyJob) -> None:
        self._folder = folder
        self._job = job
        # The process that asks has compared the hashes.
        self._bundle = Bundle.load(job.bundle, verify=False)
        case = self._bundle.load_case(job.case)
        self._feeds = case.inputs
        self.runs: dict[str, Run] = {}
        self.run_seconds: dict[str, float] = {}
        self.left_out: dict[str, str] = {}
        self._module: torch.nn.Module | None = None
        try:
            self._module = _module(job, folder)
        except AttnportError as err:
            torch_kinds = [kind for kind in job.kinds if kind.startswith("torch-")]
            self.left_out = dict.fromkeys(torch_kinds, str(err))
        self.on_device: DeviceEngines | None = None
        self.turn: Turn = clock_turn
        if job.device == "cuda":
            self.on_device = DeviceEngines(self._bundle, case, self._module)
            self.turn = self.on_device.timer.turn

    def enter(self, name: str, kind: str) -> None:
        """Opens an engine and warms it up; one that fails is left out."""
        if name in self.left_out:
            return
        # Read by the asking process, should the engine take this one down.
        (self._folder / STAGE).write_text(kind, "utf-8")
        try:
            run = self._run_of(kind)
            self.run_seconds[name] = warm_up(run, self.turn)
            self.runs[name] = run
        except AttnportError as err:
            self.left_out[name] = str(err)
        except Exception as err:  # whatever the engine's own library raises
            self.left_out[name] = f"it failed when it was run: {err}"

    def _run_of(self, kind: str) -> Run:
        if self.on_device is not None:
            return self.on_device.open(kind)
        return _runner(self._open(kind), self._feeds)

    def _open(self, kind: str) -> Engine:
        if kind != STOCK:
            return open_engine(self._bundle, kind, module=self._module, threads=self._job.threads)
        if self._module is None:
            raise EngineUnavailableError("the module was not given")
        folder = self._folder / "stock"
        folder.mkdir(exist_ok=True)
        threads = self._job.threads
        return open_stock(self._bundle, self._module, self._feeds, folder, threads=threads)


def _module(job: LatencyJob, folder: Path) -> torch.nn.Module | None:
    if job.has_module:
        return unpickle_module(folder / MODULE, job)
    if job.module_maker is not None:
        return make_module(job.module_maker, job.module_argument)
    return None


def _runner(engine: Engine, feeds: Mapping[str, np.ndarray]) -> Run:
    return lambda: engine.run(feeds)
