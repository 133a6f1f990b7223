"""The public functions: from a module to a bundle, to engines, to a proof.

Unlike the rooms, they know where modules come from: an engine that needs the PyTorch module gets
the one that the bundle's `source` names, unless another is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import UsageError

if TYPE_CHECKING:
    import torch

    from attnport.engines.build_options import BuildOptions
    from attnport.engines.decoding.session import DecodingSession
    from attnport.engines.engine import Engine
    from attnport.engines.plan import EnginePlan
    from attnport.export.bundle import Bundle
    from attnport.export.export_module import export_module as export_module
    from attnport.validate.extent import Extent
    from attnport.validate.progress import Progress
    from attnport.validate.report import Report
    from attnport.validate.requirements import Requirements


def __getattr__(name: str) -> object:
    # Exporting needs torch, the other functions do not: it is imported when it is asked for.
    if name == "export_module":
        from attnport.export.export_module import export_module

        return export_module
    raise AttributeError(f"module 'attnport.api' has no attribute {name!r}")


def build_engine(
    bundle: Bundle | str | Path,
    engine: str,
    *,
    out: str | Path | None = None,
    options: BuildOptions | None = None,
    rehash: bool = False,
    progress: Progress | None = None,
) -> EnginePlan:
    """Builds what an engine runs, and tells what came of it.

    Args:
        bundle: A bundle, or its folder.
        engine: The kind of engine, such as "tensorrt-rtx".
        out: The folder for the plan; the bundle's own by default.
        options: Profiles, targets and limits of a plan (`attnport.engines.build_options`).
        rehash: Whether to read files again that did not change since they were hashed last.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Returns:
        The plan; its `fusion` says of each attention which kernel it became, or why none.

    Raises:
        UsageError: If there is no such kind.
        BundleError: If the folder is not a whole bundle.
        EngineUnavailableError: If this machine lacks what building needs.
        BuildError: If the builder refuses the graph or dies; nothing half-written is left.

    Example:
        plan = attnport.build_engine("build/multi-head", "tensorrt-rtx")
        assert all(attention.fused for attention in plan.fusion.attentions)
    """
    from attnport.engines import build

    folder = None if out is None else Path(out)
    return build.build_engine(
        _loaded(bundle), engine, out=folder, options=options, rehash=rehash, progress=progress
    )


def open_engine(
    bundle: Bundle | str | Path,
    engine: str,
    *,
    module: torch.nn.Module | None = None,
    plan: EnginePlan | None = None,
    threads: int | None = None,
    cuda_graphs: bool = False,
) -> Engine:
    """Opens an engine to run arrays through; it is a context manager.

    Args:
        bundle: A bundle, or its folder.
        engine: The kind of engine, such as "ort-cpu".
        module: The module that was exported, for the torch engines; by default it is made again
            from the bundle's source.
        plan: The plan, for the TensorRT engines; the one in the bundle's folder by default.
        threads: How many CPU threads to compute with; None leaves it to the library.
        cuda_graphs: For the TensorRT engines, whether runs are recorded as CUDA graphs.

    Raises:
        UsageError: If there is no such kind, or the module is needed and cannot be made.
        BundleError: If the bundle or the plan is not whole.
        EngineUnavailableError: If this machine cannot run it; never runs another instead.

    Example:
        with attnport.open_engine("build/multi-head", "ort-cpu") as engine:
            outputs = engine.run({"x": x})  # numpy arrays by name
    """
    from attnport.engines import open as opening

    whole = _loaded(bundle)
    if module is None:
        module = _module_for(whole, (engine,))
    return opening.open_engine(
        whole, engine, module=module, plan=plan, threads=threads, cuda_graphs=cuda_graphs
    )


def open_decoding(
    bundle: Bundle | str | Path,
    engine: str,
    *,
    module: torch.nn.Module | None = None,
    plan: EnginePlan | None = None,
    threads: int | None = None,
) -> DecodingSession:
    """Opens an engine to decode token by token, its caches kept where they are between steps.

    Args:
        bundle: A bundle with caches, or its folder.
        engine: The kind of engine, such as "ort-cpu".
        module: The module that was exported, for the torch engines; by default it is made again
            from the bundle's source.
        plan: The plan, for the TensorRT engines; the one in the bundle's folder by default.
        threads: How many CPU threads to compute with; None leaves it to the library.

    Raises:
        UsageError: If the bundle has no caches, there is no such kind, or the module is needed and
            cannot be made.
        BundleError: If the bundle or the plan is not whole.
        EngineUnavailableError: If this machine cannot run it; never runs another instead.

    Example:
        with attnport.open_decoding("build/lm", "ort-cpu") as session:
            session.start(batch=1)
            logits = session.feed(np.array([[1, 2, 3]]))  # (1, 3, vocabulary)
            logits = session.feed(logits[:, -1:].argmax(-1))
    """
    from attnport.engines.decoding import open as opening

    whole = _loaded(bundle)
    if module is None:
        module = _module_for(whole, (engine,))
    return opening.open_decoding(whole, engine, module=module, plan=plan, threads=threads)


def prove(
    bundle: Bundle | str | Path,
    engines: Sequence[str],
    *,
    module: torch.nn.Module | None = None,
    require: Requirements | None = None,
    plans: Mapping[str, EnginePlan] | None = None,
    latency: bool = False,
    extent: Extent | None = None,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Proves what can be proved here: parity with the module, merged QKV, fused attention.

    What this machine lacks is a finding "not run" with the reason, never an exception.

    Args:
        bundle: A bundle, or its folder.
        engines: The kinds of engine to look at; those that the requirements name are added.
        module: The module that was exported, for the torch engines; by default it is made again
            from the bundle's source.
        require: What the verdict depends on; `Requirements()` by default.
        plans: What was built already, by kind; the others are built.
        latency: Whether to measure latency, too.
        extent: How far to go beyond the shipped cases; not at all by default.
        options: Of plans that are built here, such as their profiles.
        progress: Called with what is being done and the fraction, from 0 to 1, that is done.

    Returns:
        The report; its `verdict` is "proved", "failed" or "not proved".

    Raises:
        UsageError: If a kind does not exist, or the module is needed and cannot be made.
        BundleError: If the bundle is not whole.

    Example:
        report = attnport.prove("build/multi-head", ["ort-cpu", "tensorrt-rtx"])
        report.save("report.json")
        sys.exit(report.exit_code)
    """
    from attnport.validate import prove as proving
    from attnport.validate.requirements import Requirements

    whole = _loaded(bundle)
    wanted = require or Requirements()
    if module is None:
        further = ("torch-eager",) if extent is not None and extent.needs_module else ()
        module = _module_for(whole, (*engines, *wanted.kinds(), *further))
    if module is None and (whole.manifest.caches or latency):
        # Generation and latency are compared with PyTorch's; where that is not at hand, the report
        # says so.
        with contextlib.suppress(UsageError):
            module = _module_for(whole, ("torch-eager",))
    return proving.prove(
        whole,
        engines,
        module=module,
        require=wanted,
        plans=plans,
        latency=latency,
        extent=extent,
        options=options,
        progress=progress,
    )


def _loaded(bundle: Bundle | str | Path) -> Bundle:
    from attnport.export.bundle import Bundle

    return bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)


def _module_for(bundle: Bundle, kinds: Iterable[str]) -> torch.nn.Module | None:
    """The module of the bundle's source, if one of the kinds needs it and could run it."""
    from attnport.engines.kinds import engine_kind
    from attnport.engines.libraries import why_missing

    users = [kind for kind in map(engine_kind, kinds) if kind.needs_module]
    source = bundle.manifest.source
    if not users or not source or why_missing("torch"):
        return None
    from attnport.models.sources import module_from_source

    try:
        return module_from_source(source)
    except UsageError as err:
        raise UsageError(
            f"{users[0].name} runs the module of {bundle.path}, and it cannot be made here: {err}; "
            "or give module=, or leave the torch engines out"
        ) from err
