"""Opens a decoding session on an engine of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.engines.decoding.caches import CacheStore
from attnport.engines.decoding.carried_caches import CarriedCaches
from attnport.engines.decoding.in_place import why_not_in_place
from attnport.engines.decoding.layout import DecodingLayout, layout_of
from attnport.engines.decoding.session import DecodingSession
from attnport.engines.engine import Engine
from attnport.engines.kinds import engine_kind
from attnport.engines.open import open_engine
from attnport.engines.plan import EnginePlan
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import torch


def open_decoding(
    bundle: Bundle,
    kind: str,
    *,
    module: torch.nn.Module | None = None,
    plan: EnginePlan | None = None,
    threads: int | None = None,
    in_place: bool = True,
) -> DecodingSession:
    """Opens a session; it is a context manager that frees what it holds.

    ONNX Runtime keeps the caches as bound values, TensorRT in device memory; the torch kinds take
    and give them at each step. With a CUDA device it is **unrun**.

    Args:
        bundle: An exported model with caches.
        kind: Such as "ort-cpu".
        module: The module that the bundle was exported from, for the torch kinds.
        plan: The plan to run, for the TensorRT kinds; by default the one in the bundle's folder.
        threads: How many CPU threads to compute with; None leaves it to the library.
        in_place: Whether ONNX Runtime may write static caches in place, where the graph allows it;
            without it they have two buffers, and are copied at every step.

    Raises:
        UsageError: If the bundle has no caches, or there is no such kind.
        EngineUnavailableError: If this machine cannot run it; says why, and never runs another.
        GraphError: If ONNX Runtime refuses the graph.
        BundleError: If the plan is missing, damaged or of another export.
    """
    layout = layout_of(bundle)
    engine_kind(kind)
    engine = open_engine(bundle, kind, module=module, plan=plan, threads=threads)
    return DecodingSession(layout, _store(bundle, engine, layout, in_place))


def carried_session(bundle: Bundle, engine: Engine) -> DecodingSession:
    """A session on an opened engine that takes and gives the caches at each step.

    Args:
        bundle: What the engine was made from.
        engine: The engine, closed with the session.

    Raises:
        UsageError: If the bundle has no caches.
    """
    layout = layout_of(bundle)
    return DecodingSession(layout, CarriedCaches(engine, layout))


def _store(bundle: Bundle, engine: Engine, layout: DecodingLayout, in_place: bool) -> CacheStore:
    kind = engine_kind(engine.kind)
    if kind.library == "onnxruntime":
        from attnport.engines.decoding.ort_caches import OrtCaches
        from attnport.engines.ort_engine import OrtEngine

        assert isinstance(engine, OrtEngine)
        if layout.kind == "static":
            in_place = in_place and not why_not_in_place(bundle.model_path, layout)
        return OrtCaches(engine, layout, kind.device, in_place=in_place)
    if kind.builds_plan:
        from attnport.engines.decoding.plan_caches import PlanCaches
        from attnport.engines.trt_engine import TrtEngine

        assert isinstance(engine, TrtEngine)
        return PlanCaches(engine, layout)
    return CarriedCaches(engine, layout)
