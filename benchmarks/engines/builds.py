"""How long a build takes and how much memory; how long it takes to find that it was done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
from benchmarks.engines.stack import write_stack

from attnport.engines.build import build_engine
from attnport.export.bundle import Bundle
from attnport.export.digests import remembered_sha256

RTX = "tensorrt-rtx"
# Digests of files that were written less than this ago are not remembered.
_SETTLE_SECONDS = 2.5
_HITS = 20
_GIB = 1 << 30


def measure_module(folder: Path) -> dict[str, object]:
    """The registry's module, D=4096 H=32, fp16: built, and found again."""
    command = ["export", "multi-head-4096-32", "--dtype", "float16", "--max-cases", "0"]
    done = [sys.executable, "-m", "attnport", *command, "--out", str(folder)]
    subprocess.run(done, check=True, stdout=subprocess.DEVNULL)
    bundle = Bundle.load(folder)
    start, before_cpu = time.perf_counter(), _cpu_seconds()
    plan = build_engine(bundle, RTX)
    whole, cpu = time.perf_counter() - start, _cpu_seconds() - before_cpu
    return {
        "model": "multi-head-4096-32, fp16, one layer",
        "weights_gib": _size(folder, "model.onnx") / _GIB,
        "build_engine_seconds": whole,
        "of_it_on_a_core_seconds": cpu,
        "tensorrt_seconds": plan.build_seconds,
        "peak_memory_gib": (plan.peak_memory_bytes or 0) / _GIB,
        **measure_hits(bundle),
    }


def measure_hits(bundle: Bundle) -> dict[str, object]:
    """Finding a plan: with digests remembered, and beyond hashing where all is hashed again."""
    time.sleep(_SETTLE_SECONDS)
    build_engine(bundle, RTX)  # hashes, and remembers
    remembered = sorted(_timed(bundle, rehash=False) for _ in range(_HITS))
    plan = bundle.path / f"model.{RTX}.plan"
    files = [*bundle.path.glob("model.onnx*"), plan]
    start = time.perf_counter()
    for file in files:
        remembered_sha256(file, again=True)
    hashing = time.perf_counter() - start
    verified = _timed(bundle, rehash=True)
    return {
        "hit_ms_median": 1e3 * remembered[_HITS // 2],
        "hit_ms_worst": 1e3 * remembered[-1],
        "verify_seconds": verified,
        "of_it_hashing_seconds": hashing,
    }


def measure_stack(folder: Path, layers: int) -> dict[str, object]:
    """A stack of layers: time, and peak memory beside the size of its weights."""
    bundle = write_stack(folder, layers)
    weights = _size(folder, "model.onnx")
    wanted = 3 * weights + _GIB
    if psutil.virtual_memory().available < wanted or shutil.disk_usage(folder).free < 2 * weights:
        return {
            "model": f"{layers} layers",
            "not_run": f"needs about {wanted / _GIB:.0f} GiB of free memory and "
            f"{2 * weights / _GIB:.0f} GiB of disk",
        }
    own = psutil.Process(os.getpid())
    before = own.memory_info().rss
    start, before_cpu = time.perf_counter(), _cpu_seconds()
    plan = build_engine(bundle, RTX)
    whole, cpu = time.perf_counter() - start, _cpu_seconds() - before_cpu
    fused = sum(one.fused for one in plan.fusion.attentions) if plan.fusion else 0
    return {
        "model": f"{layers} layers of D=4096 H=32, fp16",
        "weights_gib": weights / _GIB,
        "build_engine_seconds": whole,
        "of_it_on_a_core_seconds": cpu,
        "tensorrt_seconds": plan.build_seconds,
        "plan_gib": (folder / f"model.{RTX}.plan").stat().st_size / _GIB,
        "peak_memory_gib": (plan.peak_memory_bytes or 0) / _GIB,
        "peak_over_weights": (plan.peak_memory_bytes or 0) / weights,
        "own_growth_gib": (own.memory_info().rss - before) / _GIB,
        "fused": f"{fused} of {layers}",
        **measure_hits(bundle),
    }


def _timed(bundle: Bundle, *, rehash: bool) -> float:
    start = time.perf_counter()
    assert build_engine(bundle, RTX, rehash=rehash).cached
    return time.perf_counter() - start


def _cpu_seconds() -> float:
    """Of this process and its children that ended: what a busy machine does not lengthen."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _size(folder: Path, name: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(f"{name}*"))
