"""Builds an engine of any kind from a bundle."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from attnport.engines import libraries
from attnport.engines.build_options import BuildOptions
from attnport.engines.decoding.profiles import with_decoding_profiles
from attnport.engines.kinds import EngineKind, engine_kind, lack_to_build
from attnport.engines.plan import EnginePlan
from attnport.errors import EngineUnavailableError, UsageError
from attnport.export.bundle import Bundle


def build_engine(
    bundle: Bundle,
    kind: str,
    *,
    out: Path | None = None,
    options: BuildOptions | None = None,
    rehash: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> EnginePlan:
    """Builds what a kind of engine runs, and tells what came of it.

    For TensorRT that is a plan (of two profiles, prefill and one token, where the bundle has caches
    and no others are asked for), left as `model.<kind>.plan` with `.plan.json` (see `load_plan`)
    and `.plan.log`; one that lies there and was built from the same things is taken as it is.
    ONNX Runtime loads the graph once, to know that it does. PyTorch needs nothing.

    Args:
        bundle: The exported model.
        kind: Such as "tensorrt-rtx"; see `attnport.engines.kinds.KINDS`.
        out: The folder to write to; the bundle's own by default.
        options: Profiles, targets and limits, for the kinds that build a plan.
        rehash: Whether to read files again that did not change since they were hashed last.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Raises:
        UsageError: If there is no such kind, or the options do not fit it or the bundle.
        EngineUnavailableError: If this machine lacks what building needs.
        BuildError: If the builder refuses the graph or dies; nothing half-written is left.
        UnsupportedDtypeError: If ONNX Runtime has no kernel for the graph's dtype.
        GraphError: If the file is no graph, or ONNX Runtime refuses it.
    """
    asked, wanted = engine_kind(kind), options or BuildOptions()
    if not asked.builds_plan and wanted != BuildOptions():
        raise UsageError(
            f"{kind} builds no plan, so it takes no build options: give them to tensorrt or "
            "tensorrt-rtx"
        )
    if asked.library != "tensorrt" and asked.library != "tensorrt_rtx":
        _require_buildable(asked)
        return _built_without_plan(bundle, asked, out or bundle.path)
    from attnport.engines.trt_build import TrtBuild

    if not libraries.has_distribution(asked.library):
        _require_buildable(asked)
    wanted = with_decoding_profiles(bundle, wanted)
    build = TrtBuild(bundle, asked.name, asked.library, out or bundle.path, wanted, rehash=rehash)
    plan = build.found()
    if plan is None:
        # Only now, since it loads the library, which takes longer than finding a plan.
        _require_buildable(asked)
        plan = build.run(progress or _silent)
    return plan


def _require_buildable(kind: EngineKind) -> None:
    lack = lack_to_build(kind)
    if lack is not None:
        raise EngineUnavailableError(f"not built: {lack.sentence()}")


def _built_without_plan(bundle: Bundle, kind: EngineKind, out: Path) -> EnginePlan:
    start = time.perf_counter()
    path, lowering = None if kind.needs_module else bundle.model_path, None
    if kind.library == "onnxruntime":
        from attnport.engines.ort_engine import OrtEngine

        with OrtEngine(bundle, kind) as engine:
            from attnport.engines.lowered_file import save_lowered

            path, lowering = save_lowered(engine.lowered, bundle, kind.name, out)
    return EnginePlan(
        kind=kind.name,
        model=bundle.name,
        bundle_path=bundle.path,
        bundle_hash=bundle.hash,
        dtype=bundle.dtype,
        path=path,
        versions={kind.library: libraries.version(kind.library)},
        build_seconds=time.perf_counter() - start,
        lowering=lowering,
    )


def _silent(phase: str, fraction: float) -> None:
    """Progress that nobody asked for."""
