"""Runs the steps of the road one after the other, each in a process, within one time.

This file needs nothing but Python. A step that lacks a library says which; one that fails, dies or
takes too long is reported as that, and the others run all the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_TAIL_CHARACTERS = 1500
_SMI = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap,memory.total",
        "--format=csv,noheader"]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step: the libraries that it needs, and how long it may take."""

    name: str
    what: str
    needs: tuple[str, ...]
    seconds: float


_ATTNPORT = ("numpy", "onnx", "onnx_ir", "ml_dtypes", "safetensors", "pydantic")
STEPS = (
    Step("torch", "the reference modules on the device against float64", ("torch",), 60),
    Step("graphs", "prepared graphs in onnxruntime alone", ("numpy", "onnxruntime"), 60),
    Step("doctor", "what this machine can do", (*_ATTNPORT, "typer", "rich"), 60),
    Step("proof", "every engine against its module, and what fused", (*_ATTNPORT, "scipy"), 200),
    Step("foreign", "plans that were built without a GPU, opened here", _ATTNPORT, 60),
    Step(
        "latency",
        "between events, inputs rotated, CUDA graphs, copies apart, torch beside it",
        (*_ATTNPORT, "scipy", "cuda"),
        120,
    ),
    Step("speed", "calls of one thread and of four, copies and all", (*_ATTNPORT, "scipy"), 60),
    Step("tests", "the tests with the marker gpu", (*_ATTNPORT, "pytest"), 150),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=460)
    parser.add_argument("--step", action="append", help="only these")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.seconds
    results: dict[str, Any] = {"machine": _machine(), "steps": {}}
    for step in STEPS:
        if asked.step and step.name not in asked.step:
            continue
        print(f"{step.name}: {step.what} …", flush=True)
        outcome = _run(step, asked.out, end - time.monotonic())
        results["steps"][step.name] = outcome
        print(f"  {outcome['status']} {outcome.get('reason', '')}", flush=True)
        _write(results, asked.out)  # after each step: what is done is not lost
    print(f"results: {asked.out / 'results.json'}, {asked.out / 'results.md'}")


def _run(step: Step, out: Path, left: float) -> dict[str, Any]:
    missing = [name for name in step.needs if importlib.util.find_spec(name) is None]
    if missing:
        return {"status": "not run", "reason": f"{', '.join(missing)} is not installed"}
    seconds = min(step.seconds, left)
    if seconds < 5:
        return {"status": "not run", "reason": "the time for all steps was over"}
    answer = out / f"{step.name}.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.steps", step.name, str(out), str(answer)]
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own children, too
        said = process.communicate()[0]
        return {"status": "failed", "reason": f"took longer than {seconds:.0f} s", **_tail(said)}
    took = {"seconds": round(time.monotonic() - start, 1)}
    if process.returncode != 0 or not answer.exists():
        return {"status": "failed", "reason": _ending(process.returncode), **took, **_tail(said)}
    return {**json.loads(answer.read_text("utf-8")), **took}


def _ending(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _tail(said: bytes) -> dict[str, str]:
    return {"output": said.decode("utf-8", "replace")[-_TAIL_CHARACTERS:]}


def _machine() -> dict[str, Any]:
    try:
        gpus = subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        gpus = ""
    from importlib import metadata

    wanted = ("torch", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt-cu13",
              "tensorrt", "tensorrt-rtx-cu13", "cuda-bindings")  # fmt: skip
    versions = {}
    for name in wanted:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "gpus": [line.strip() for line in gpus.splitlines() if line.strip()],
        "versions": versions,
    }


def _write(results: dict[str, Any], out: Path) -> None:
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    machine = results["machine"]
    lines = [
        "# The road on a GPU machine",
        "",
        f"{machine['created']}, {', '.join(machine['gpus']) or 'no GPU'}, {machine['cores']} cores, "
        f"Python {machine['python']}",
        "",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        "",
        "| step | status | seconds | |",
        "|---|---|---|---|",
    ]
    for name, step in results["steps"].items():
        lines.append(
            f"| {name} | {step['status']} | {step.get('seconds', '')} | {step.get('reason', '')} |"
        )
    for name, step in results["steps"].items():
        rows = step.get("rows") or []
        if rows:
            columns = list(dict.fromkeys(key for row in rows for key in row))
            lines += ["", f"## {name}", "", f"| {' | '.join(columns)} |",
                      f"|{'---|' * len(columns)}"]  # fmt: skip
            lines += [f"| {' | '.join(str(row.get(c, '')) for c in columns)} |" for row in rows]
    (out / "results.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
