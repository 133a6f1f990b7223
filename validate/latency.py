"""Latency of a bundle's engines against PyTorch, in numbers that can be quoted.

All engines of a bundle are measured by one process that does nothing else, with waiting threads
told to sleep, in turns whose order is shuffled in each round. One engine is entered twice (the A/A
test): what the method sees between it and itself is what it cannot tell from no difference.

On a CPU what is timed is `Engine.run`, arrays in and arrays out; half precision is emulated there,
and its latency worth nothing. On a GPU it is one run between two events, its inputs on the device
already, rotated beyond the cache, with and without CUDA graphs; copies are stated apart. Engines of one
device and one dtype are compared, and each device is measured by a process of its own. **The GPU's part
is unrun.**
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from attnport.engines.kinds import KINDS, availability, engine_kind
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import CaseRecord
from attnport.validate.latency_job import (
    GRAPH_ENDING,
    ON_DEVICE_ENDING,
    Device,
    LatencyJob,
)
from attnport.validate.latency_process import samples_from_job
from attnport.validate.latency_result import measurements_from_samples
from attnport.validate.report import Measurement

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LatencyResult:
    """What was measured, and what was not.

    Attributes:
        measurements: One for each engine, and the A/A test last (its note begins "A/A test").
        left_out: For each engine that was not measured the reason.
    """

    measurements: tuple[Measurement, ...]
    left_out: dict[str, str]


def measure_latency(
    bundle: Bundle,
    kinds: Sequence[str],
    *,
    module: torch.nn.Module | None = None,
    module_maker: str | None = None,
    case: str | None = None,
    seconds: float = 3.0,
    rounds: int = 21,
    threads: int | None = None,
    seed: int = 0,
    peers: bool = False,
) -> LatencyResult:
    """Measures engines on the inputs of one case, and compares them with the torch forms.

    Args:
        bundle: What the engines run.
        kinds: The engines; the torch ones among them are what the others are compared with.
        module: The module, for the torch engines; it must be one that pickle accepts.
        module_maker: Instead of the module "package.module:function", called in the measuring
            process with the bundle's `source`.
        case: Whose inputs; by default the one whose sizes are nearest to every axis's opt.
        seconds: About how long to measure, all engines together; opening and warming up come on
            top. Engines too slow for it get fewer rounds.
        rounds: How many turns each engine gets.
        threads: Worker threads of each engine; by default the cores this process may use.
        seed: Of the order of turns and of the bootstrap.
        peers: Whether the torch forms that this machine can run, and the module exported by
            torch.onnx alone, are measured beside the engines; the module must be given.

    Raises:
        UsageError: If the case or an engine does not exist, or a number makes no sense.
    """
    _check(module, module_maker, seconds, rounds)
    with_module = peers and (module is not None or module_maker is not None)
    by_device, left_out = _by_device(bundle, kinds, with_module)
    found: list[Measurement] = []
    for device, entries in by_device.items():
        job = LatencyJob(
            bundle=str(bundle.path.absolute()),
            kinds=tuple(entries),
            device=device,
            case=_case(bundle, case).name,
            seconds=seconds,
            rounds=rounds,
            threads=threads or _usable_cores(),
            seed=seed,
            stock=with_module and "ort-cpu" in entries,
            module_maker=module_maker,
            module_argument=bundle.manifest.source,
        )
        with tempfile.TemporaryDirectory(prefix="attnport-latency-") as folder:
            samples, outcome = samples_from_job(job, module, Path(folder))
        left_out |= outcome.left_out
        found += measurements_from_samples(
            bundle, job, samples, outcome.same_as, outcome.facts, outcome.note
        )
    return LatencyResult(tuple(found), left_out)


def _by_device(
    bundle: Bundle, kinds: Sequence[str], with_module: bool
) -> tuple[dict[Device, list[str]], dict[str, str]]:
    """The entries of each device, and why other kinds are left out."""
    left_out: dict[str, str] = {}
    on: dict[Device, list[str]] = {"cpu": [], "cuda": []}
    for kind in dict.fromkeys([*kinds, *(_torch_forms() if with_module else ())]):
        device = engine_kind(kind).device
        if device == "cuda" and availability(kind):
            left_out[kind] = availability(kind)
        elif device == "cpu" and bundle.dtype in ("float16", "bfloat16"):
            left_out[kind] = f"{bundle.dtype} is emulated on a CPU: its latency says nothing"
        else:
            on[device].append(kind)
    if on["cuda"]:
        on["cuda"] = _device_entries(on["cuda"], with_module)
    return {device: entries for device, entries in on.items() if entries}, left_out


def _device_entries(kinds: Sequence[str], with_module: bool) -> list[str]:
    """Each engine and each torch form that the device can run, as it is and as a CUDA graph."""
    entries = list(kinds)
    if with_module and _torch_has_cuda():
        entries += [kind + ON_DEVICE_ENDING for kind in _torch_forms()]
    return [entry + ending for entry in entries for ending in ("", GRAPH_ENDING)]


def _torch_has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _torch_forms() -> list[str]:
    return [name for name, kind in KINDS.items() if kind.needs_module and not availability(name)]


def nearest_case(bundle: Bundle) -> CaseRecord:
    """The case whose sizes are nearest to every axis's opt, of ordinary magnitudes if there is one.

    Raises:
        UsageError: If the bundle has no cases.
    """
    cases = bundle.manifest.cases
    if not cases:
        raise UsageError(
            f"bundle {bundle.path} holds no case to measure with: export it with cases"
        )
    # Denormal and overflowing inputs take other paths through a CPU than ordinary ones.
    usual = [record for record in cases if record.magnitude == "normal"] or list(cases)
    return min(usual, key=lambda record: _distance(bundle, record))


def _distance(bundle: Bundle, record: CaseRecord) -> float:
    return sum(
        abs(math.log(max(record.sizes[name], 1) / max(axis.opt, 1)))
        for name, axis in bundle.axes.items()
        if name in record.sizes
    )


def _check(
    module: torch.nn.Module | None, module_maker: str | None, seconds: float, rounds: int
) -> None:
    if module is not None and module_maker is not None:
        raise UsageError("module and module_maker are both given: give one of them")
    if rounds < 2 or not seconds > 0:
        raise UsageError(
            f"rounds={rounds} and seconds={seconds}: give at least 2 rounds and more than 0 seconds"
        )


def _case(bundle: Bundle, name: str | None) -> CaseRecord:
    return nearest_case(bundle) if name is None else bundle.load_case(name).record


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count(logical=False) or 1
