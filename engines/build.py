"""Builds an engine of any kind from a bundle."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from attnport.engines import libraries
from attnport.engines.kinds import EngineKind, engine_kind, lack_to_build
from attnport.engines.plan import EnginePlan
from attnport.errors import EngineUnavailableError
from attnport.export.bundle import Bundle


def build_engine(
    bundle: Bundle,
    kind: str,
    *,
    out: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> EnginePlan:
    """Builds what a kind of engine runs, and tells what came of it.

    For TensorRT that is a plan, left as `model.<kind>.plan` with `.plan.json` (see `load_plan`)
    and `.plan.log`. ONNX Runtime loads the graph once, to know that it does. PyTorch needs nothing.

    Args:
        bundle: The exported model.
        kind: Such as "tensorrt-rtx"; see `attnport.engines.kinds.KINDS`.
        out: The folder to write to; the bundle's own by default.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        UsageError: If there is no such kind.
        EngineUnavailableError: If this machine lacks what building needs.
        BuildError: If the builder refuses the graph or dies; nothing half-written is left.
        UnsupportedDtypeError: If ONNX Runtime has no kernel for the graph's dtype.
        GraphError: If the file is no graph, or ONNX Runtime refuses it.
    """
    asked = engine_kind(kind)
    lack = lack_to_build(asked)
    if lack is not None:
        raise EngineUnavailableError(f"not built: {lack.sentence()}")
    if asked.library == "tensorrt" or asked.library == "tensorrt_rtx":
        from attnport.engines.trt_build import build_trt_plan

        report = progress or _silent
        return build_trt_plan(bundle, asked.name, asked.library, out or bundle.path, report)
    return _built_without_plan(bundle, asked)


def _built_without_plan(bundle: Bundle, kind: EngineKind) -> EnginePlan:
    start = time.perf_counter()
    if kind.library == "onnxruntime":
        from attnport.engines.ort_engine import OrtEngine

        OrtEngine(bundle, kind).close()
    return EnginePlan(
        kind=kind.name,
        model=bundle.name,
        bundle_path=bundle.path,
        bundle_hash=bundle.hash,
        dtype=bundle.dtype,
        path=None if kind.needs_module else bundle.model_path,
        versions={kind.library: libraries.version(kind.library)},
        build_seconds=time.perf_counter() - start,
    )


def _silent(phase: str, fraction: float) -> None:
    """Progress that nobody asked for."""
