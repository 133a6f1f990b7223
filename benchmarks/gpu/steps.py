"""The steps of the road: `python -m benchmarks.gpu.steps NAME OUT ANSWER.json`.

Each imports no more than it needs, and writes a status, a reason where it is not "passed", and rows
for the table. "not run" means that something was missing here; a step never passes without a run.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import CALLS, ENGINES, Answer, bundles_of, milliseconds, not_run
from benchmarks.gpu.speed import latency_step, speed_step

_SMALL_BYTES = 1 << 20  # of a case that a CPU computes in half precision, too


def torch_step(out: Path) -> Answer:
    """Each form of a reference module on the device, in fp16, against float64 on the CPU."""
    import torch

    from attnport.models.attention import MultiHeadSelfAttention

    on = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    rows = []
    # On a CPU, where half precision is slow, only that it runs is of interest.
    sizes = ((512, 8, 512), (4096, 32, 512)) if on == "cuda" else ((512, 8, 16),)
    for width, heads, tokens in sizes:
        module = MultiHeadSelfAttention(width, heads).eval().half()
        x = torch.randn(1, tokens, width).half()
        rows += [_torch_row(torch, module, x, on, form) for form in ("eager", "sdpa")]
    if on == "cpu":
        reason = "torch has no CUDA device; it ran on the CPU"
        return {"status": "not run", "reason": reason, "rows": rows}
    if not all(row["finite"] for row in rows):
        return {"status": "failed", "reason": "an output is not finite", "rows": rows}
    return {"status": "passed", "rows": rows}


def _torch_row(torch: Any, module: Any, x: Any, on: str, form: str) -> Answer:
    import copy

    wide, half = copy.deepcopy(module).double(), copy.deepcopy(module).to(on)
    for part in half.modules():
        if hasattr(part, "attention_form"):
            part.attention_form = form
    given = x.to(on)
    with torch.inference_mode():
        error = (half(given).double().cpu() - wide(x.double())).abs().max().item()
        calls = 5 if on == "cpu" else CALLS
        took = milliseconds(lambda: half(given), _waits(torch, on), calls)
    name = f"{x.shape[-1]} wide, {x.shape[1]} tokens"
    return {
        "module": name, "form": form, "device": on, "max error": f"{error:.2e}",
        "finite": math.isfinite(error), "ms": took,
    }  # fmt: skip


def graphs_step(out: Path) -> Answer:
    """Prepared graphs in onnxruntime, each form against the float64 result."""
    import numpy as np
    import onnxruntime

    prepared = sorted((out / "prepared").glob("*/model.onnx"))
    if not prepared:
        return not_run("nothing was prepared: run `python -m benchmarks.gpu.prepare` elsewhere")
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    listed = onnxruntime.get_available_providers()
    wanted = "CUDAExecutionProvider" if "CUDAExecutionProvider" in listed else listed[-1]
    on_cuda = wanted.startswith("CUDA")
    rows: list[Answer] = []
    for model in prepared:
        for file in (model, model.with_name("lowered.onnx")):
            if file.exists():
                session = onnxruntime.InferenceSession(
                    file, providers=[wanted], enable_fallback=0,
                    disabled_optimizers=["NchwcTransformer"],
                )  # fmt: skip
                rows += [
                    _graph_row(np, session, file, case, 20 if on_cuda else 1)
                    for case in sorted(model.parent.glob("*.npz"))
                    if on_cuda or case.stat().st_size <= _SMALL_BYTES
                ]
    used = {row["provider"] for row in rows}
    if not all(row["within bound"] for row in rows):
        return {"status": "failed", "reason": "errors beyond the bound", "rows": rows}
    if used != {"CUDAExecutionProvider"}:
        reason = f"onnxruntime used {', '.join(sorted(used))}, not CUDA"
        return {"status": "not run", "reason": reason, "rows": rows}
    return {"status": "passed", "rows": rows}


def _graph_row(np: Any, session: Any, file: Path, case: Path, calls: int) -> Answer:
    """One case on one graph; the bound was computed where the case was prepared."""
    arrays = dict(np.load(case))
    feeds = {name[6:]: array for name, array in arrays.items() if name.startswith("input.")}
    names = [output.name for output in session.get_outputs()]
    start = time.perf_counter()
    results = session.run(names, feeds)
    first = time.perf_counter() - start
    worst, within = 0.0, True
    for name, found in zip(names, results, strict=True):
        error = float(np.abs(found - arrays[f"reference.{name}"]).max(initial=0))
        worst = max(worst, error)
        within = within and error <= float(arrays[f"bound.{name}"])  # a NaN is not within
    return {
        "model": file.parent.name,
        "graph": file.name,
        "case": case.stem,
        "provider": session.get_providers()[0],
        "max error": f"{worst:.2e}",
        "within bound": within,
        "first ms": f"{1e3 * first:.2f}",
        "ms": milliseconds(lambda: session.run(names, feeds), lambda: None, calls),
    }


def doctor_step(out: Path) -> Answer:
    said = subprocess.run(
        [sys.executable, "-m", "attnport", "doctor", "--json"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = json.loads(said)
    rows = [
        {"engine": one["kind"], "builds": one["buildable"], "runs": one["usable"],
         "missing": one["missing"]}
        for one in found["engines"]
    ]  # fmt: skip
    return {"status": "passed", "rows": rows, "doctor": found}


def proof_step(out: Path) -> Answer:
    """Exports where it can, else takes what was prepared; builds and proves every engine."""
    from attnport.engines.kinds import availability
    from attnport.validate.prove import prove
    from attnport.validate.requirements import Requirements

    runnable = [kind for kind in ENGINES if not availability(kind)]
    on_device = [kind for kind in runnable if kind != "ort-cpu"]
    bundles = bundles_of(out)
    if not bundles:
        return not_run("there is no exporter, and nothing was prepared")
    rows, verdicts = [], set()
    for bundle in bundles:
        require = Requirements(parity=tuple(runnable))
        report = prove(bundle, ENGINES, require=require)
        report.save(out / f"proof-{bundle.name}.json")
        verdicts.add(report.verdict)
        rows += [
            {"model": bundle.name, "engine": f.engine, "check": f.check, "case": f.case,
             "status": f.status, "message": f.message}
            for f in report.findings
            if f.check != "parity" or f.status != "passed" or f.required
        ]  # fmt: skip
    if "failed" in verdicts:
        return {"status": "failed", "reason": "see the rows with status failed", "rows": rows}
    if not on_device:
        missing = "; ".join(f"{kind}: {availability(kind)}" for kind in ENGINES[:-1])
        return {
            "status": "not run",
            "reason": f"no engine runs on a device: {missing}",
            "rows": rows,
        }
    return {"status": "passed", "rows": rows}


def foreign_step(out: Path) -> Answer:
    """Plans of TensorRT for RTX built elsewhere; on 9.0, for which it names no target, a question."""
    from attnport.engines.kinds import availability
    from attnport.engines.open import open_engine
    from attnport.engines.plan_check import check_plan
    from attnport.errors import AttnportError
    from attnport.export.bundle import Bundle
    from attnport.validate.bound import bound

    plans = sorted((out / "prepared").glob("*/plan-*/*.plan"))
    if not plans:
        return not_run("nothing was prepared: run `python -m benchmarks.gpu.prepare` elsewhere")
    lack = availability("tensorrt-rtx")
    rows: list[Answer] = []
    for path in plans:
        checked = check_plan(path)
        row: Answer = {
            "plan": f"{path.parent.parent.name}/{path.parent.name}",
            "check": checked.verdict,
        }
        rows.append(row)
        if lack:
            continue
        bundle = Bundle.load(path.parent.parent)
        try:
            with open_engine(bundle, "tensorrt-rtx", plan=checked.plan) as engine:
                case = bundle.load_case(bundle.manifest.cases[0].name)
                result = engine.run(case.inputs)
                row["opened"] = "yes"
                row["within bound"] = all(
                    float(abs(result[name] - reference).max())
                    <= bound(case.record.references[name], bundle.dtype).max
                    for name, reference in case.references.items()
                )
        except AttnportError as err:
            row["opened"] = f"no: {err}"
    if lack:
        return {"status": "not run", "reason": lack, "rows": rows}
    if not all(row.get("within bound", True) for row in rows):
        return {"status": "failed", "reason": "errors beyond the bound", "rows": rows}
    if not any("within bound" in row for row in rows):
        return {"status": "not run", "reason": "no plan opened: see the rows", "rows": rows}
    return {"status": "passed", "rows": rows}


def tests_step(out: Path) -> Answer:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/engines", "tests/validate", "-p",
               "no:cacheprovider"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    rows = [{"pytest": line} for line in lines[-15:]]
    if done.returncode != 0:
        return {
            "status": "failed",
            "reason": lines[-1] if lines else done.stderr[-300:],
            "rows": rows,
        }
    if "passed" not in lines[-1]:
        return {"status": "not run", "reason": lines[-1], "rows": rows}
    return {"status": "passed", "rows": rows}


def _waits(torch: Any, on: str) -> Callable[[], None]:
    return torch.cuda.synchronize if on == "cuda" else lambda: None


_STEPS: dict[str, Callable[[Path], Answer]] = {
    "torch": torch_step,
    "graphs": graphs_step,
    "doctor": doctor_step,
    "proof": proof_step,
    "foreign": foreign_step,
    "latency": latency_step,
    "speed": speed_step,
    "tests": tests_step,
}

if __name__ == "__main__":
    name, folder, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(_STEPS[name](Path(folder))), "utf-8")
