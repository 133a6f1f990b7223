"""What several steps of the road need."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
CALLS = 100
ENGINES = ("ort-cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx", "ort-cpu")


def bundles_of(out: Path) -> list[Any]:
    """Exported here where torch and onnxscript are, else those that were prepared."""
    from attnport.export.bundle import Bundle

    if has_exporter():
        from benchmarks.gpu.prepare import MODELS

        from attnport.models.sources import spec_from_source
        from attnport.pipeline_run import bundle_from_spec

        folder = out / "bundles"
        return [
            Bundle.load(folder / model)
            if (folder / model / "bundle.json").exists()
            else bundle_from_spec(
                spec_from_source(model), folder / model, dtype="float16", max_cases=6
            )
            for model in MODELS
        ]
    return [Bundle.load(file.parent) for file in sorted(out.glob("prepared/*/bundle.json"))]


def has_exporter() -> bool:
    import importlib.util

    return all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))


def milliseconds(call: Callable[[], object], wait: Callable[[], None], calls: int) -> str:
    """The median of so many calls, after three that are not counted."""
    times = []
    for number in range(calls + 3):
        wait()
        start = time.perf_counter()
        call()
        wait()
        if number >= 3:
            times.append(time.perf_counter() - start)
    return f"{1e3 * statistics.median(times):.3f}"


def not_run(reason: str) -> Answer:
    return {"status": "not run", "reason": reason}
