"""The machine that a report's numbers were measured on."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from attnport.validate.report import Machine

# The distributions that can change a result, or its latency.
_LIBRARIES = (
    "attnport",
    "numpy",
    "ml-dtypes",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt-cu13",
    "tensorrt-rtx-cu13",
    "torch",
)
_SMI = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total,clocks.max.sm",
    "--format=csv,noheader",
)


def this_machine() -> Machine:
    """Describes this machine without importing a single library that it names."""
    return Machine(
        platform=platform.platform(),
        cpu=_cpu_name(),
        cores=_usable_cores(),
        clock_mhz=_clock_mhz(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=_gpus(),
        python=platform.python_version(),
        versions=_versions(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


@functools.cache
def _clock_mhz() -> int | None:
    """The nominal clock, or the one of the moment; asked once, since that differs each time."""
    try:
        found = psutil.cpu_freq()
        return round(found.max or found.current)
    except (OSError, NotImplementedError, RuntimeError, AttributeError):
        return None  # virtual machines often do not tell


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # what a container grants; not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> tuple[str, ...]:
    try:
        said = subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # no driver, or one that does not answer
        return ()
    return tuple(line.strip() for line in said.splitlines() if line.strip())


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
