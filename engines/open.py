"""Opens an engine of any kind on a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.engines.engine import Engine
from attnport.engines.kinds import EngineKind, engine_kind, lack_to_run
from attnport.engines.plan import EnginePlan
from attnport.engines.plan_file import load_plan, plan_path
from attnport.engines.sharded.alone import refuse_lone_rank
from attnport.errors import BundleError, EngineUnavailableError, UsageError
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import torch


def open_engine(
    bundle: Bundle,
    kind: str,
    *,
    module: torch.nn.Module | None = None,
    plan: EnginePlan | None = None,
    threads: int | None = None,
    cuda_graphs: bool = False,
) -> Engine:
    """Opens an engine; it is a context manager that frees what it holds.

    Args:
        bundle: The exported model.
        kind: Such as "ort-cpu"; see `attnport.engines.kinds.KINDS`.
        module: The module that the bundle was exported from, for the torch kinds.
        plan: The plan to run, for the TensorRT kinds; by default the one in the bundle's folder.
        threads: How many CPU threads to compute with; None leaves it to the library.
        cuda_graphs: For the TensorRT kinds, whether to record a run as a CUDA graph, and launch
            that while shapes stay the same.

    Raises:
        UsageError: If there is no such kind, or what it needs was not given.
        EngineUnavailableError: If this machine cannot run it; says why, and never runs another.
        UnsupportedDtypeError: If it has no kernel for the graph's dtype.
        GraphError: If ONNX Runtime refuses the graph.
        BundleError: If the plan is missing, damaged or of another export.
    """
    asked = engine_kind(kind)
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}: give 1 or more")
    if cuda_graphs and not asked.builds_plan:
        raise UsageError(f"{kind} records no CUDA graphs: tensorrt and tensorrt-rtx do")
    if asked.needs_module and module is None:
        raise UsageError(
            f"{kind} runs the PyTorch module itself: give module=, the one that was exported"
        )
    refuse_lone_rank(bundle)
    lack = lack_to_run(asked)
    if lack is not None:
        raise EngineUnavailableError(f"not run: {lack.sentence()}")
    if module is not None and asked.needs_module:
        from attnport.engines.torch_engine import TorchEngine

        return TorchEngine(bundle, asked, module, threads=threads)
    if asked.builds_plan:
        from attnport.engines.trt_engine import TrtEngine

        return TrtEngine(bundle, asked, _plan_of(bundle, asked, plan), cuda_graphs=cuda_graphs)
    from attnport.engines.ort_engine import OrtEngine

    return OrtEngine(bundle, asked, threads=threads)


def _plan_of(bundle: Bundle, kind: EngineKind, plan: EnginePlan | None) -> EnginePlan:
    found = plan or load_plan(plan_path(bundle.path, kind.name))
    if found.kind != kind.name:
        raise UsageError(f"the plan {found.path} is for {found.kind}: open it as {found.kind}")
    if found.bundle_hash != bundle.hash:
        raise BundleError(
            f"the plan {found.path} was built from another export of {found.model!r} than "
            f"{bundle.path}: build again"
        )
    return found
