"""A TensorRT plan on a CUDA device.

**Unrun on a GPU**: this file was written, type-checked and tested with a device of host memory,
where there is none.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnport.axes import Axis
from attnport.engines.cuda_device import CudaDevice, Device
from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.engines.kinds import EngineKind
from attnport.engines.plan import EnginePlan
from attnport.engines.profiles import fitting_profile
from attnport.engines.trt_context import ContextPool, PlanContext
from attnport.errors import BuildError, InputError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

# Each context holds buffers and workspace of its own on the device.
_MOST_CONTEXTS = 4


class TrtEngine(Engine):
    """A plan with execution contexts and device buffers. Unrun on a GPU.

    Each thread that runs it takes a context of its own, up to four; buffers on the device are kept
    between calls. Of several profiles the narrowest that takes the inputs is run.

    Args:
        bundle: What the plan was built from: it gives names and ranges.
        kind: "tensorrt" or "tensorrt-rtx".
        plan: The plan.
        cuda_graphs: Whether to record a run, and launch that while the shapes stay the same.
        device: The device; the process's current one by default.

    Attributes:
        profiles: The ranges of every axis in each profile.
        device: The device.

    Raises:
        BuildError: If TensorRT does not take the plan.
        EngineUnavailableError: If the device fails.
    """

    def __init__(
        self,
        bundle: Bundle,
        kind: EngineKind,
        plan: EnginePlan,
        *,
        cuda_graphs: bool = False,
        device: Device | None = None,
    ) -> None:
        self.kind = kind.name
        self.inputs = bundle.manifest.inputs
        self.outputs = bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)
        self.profiles = _profiles_of(plan, bundle)
        layers = plan.fusion.layers if plan.fusion else ()
        self._layer_count = sum(layer.profile == 0 for layer in layers)
        self._runtime, self._engine = _load(kind, plan, bundle)
        self.device = device or CudaDevice()

        def make(profile: int) -> PlanContext:
            return PlanContext(
                self._engine,
                self.device,
                profile,
                self.inputs,
                self.outputs,
                cuda_graphs=cuda_graphs,
            )

        self._pool: ContextPool | None = ContextPool(make, _MOST_CONTEXTS)
        self._running = _Running()

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        checked = self._check(feeds)
        sizes = axis_sizes(self.inputs, {name: array.shape for name, array in checked.items()})
        profile = fitting_profile(self.profiles, sizes)
        if profile is None:
            raise InputError(_no_profile(self.profiles, sizes))
        with self._running.one_more():
            if self._pool is None:
                raise UsageError(f"this {self.kind} engine was closed: open it again")
            return self._pool.run(profile, checked)

    @property
    def plan_engine(self) -> Any:
        """TensorRT's ICudaEngine, for what keeps values on the device.

        Raises:
            UsageError: If the engine was closed.
        """
        if self._engine is None:
            raise UsageError(f"this {self.kind} engine was closed: open it again")
        return self._engine

    def placement(self) -> dict[str, int]:
        """How many layers of the plan's first profile the device runs."""
        return {"cuda": self._layer_count}

    def close(self) -> None:
        """Frees everything on the device, once the calls that run are done."""
        with self._running.none():
            if self._pool is not None:
                self._pool.close()
                self._pool = None
                # In this order: TensorRT wants a runtime to outlive its engines.
                self._engine = None
                self._runtime = None


class _Running:
    """Counts calls, so that nothing is freed under one."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)
            yield


def axis_sizes(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """The size of each axis in the shapes of checked feeds."""
    return {
        dim: size
        for spec in inputs
        for dim, size in zip(spec.shape, shapes[spec.name], strict=True)
        if isinstance(dim, str)
    }


def _profiles_of(plan: EnginePlan, bundle: Bundle) -> tuple[dict[str, Axis], ...]:
    if not plan.profiles:
        return (bundle.axes,)
    return tuple(
        {name: Axis(name, *sizes) for name, sizes in profile.items()} for profile in plan.profiles
    )


def _no_profile(profiles: Sequence[Mapping[str, Axis]], sizes: Mapping[str, int]) -> str:
    given = ", ".join(f"{name} {size}" for name, size in sizes.items())
    known = "; ".join(
        ", ".join(f"{axis.name} {axis.min} to {axis.max}" for axis in axes.values())
        for axes in profiles
    )
    return f"no profile of the plan takes {given}; they take: {known}"


def _load(kind: EngineKind, plan: EnginePlan, bundle: Bundle) -> tuple[Any, Any]:
    """TensorRT's runtime and the engine."""
    trt = importlib.import_module(kind.library)
    logger = _make_logger(trt)
    runtime = trt.Runtime(logger)
    if plan.options.version_compatible:
        runtime.engine_host_code_allowed = True  # the plan carries the runtime that it needs
    with _mapped(Path(str(plan.path))) as content:
        engine = runtime.deserialize_cuda_engine(content)
    if engine is None:
        said = "; ".join(logger.errors[:2]) or "no reason was given"
        raise BuildError(
            f"{kind.name} does not take the plan {plan.path} here ({said}): it was built by another "
            "version or for another device, so build again on this machine; `attnport check` says "
            "more"
        )
    if plan.options.weight_stripped:
        refitter = trt.OnnxParserRefitter(trt.Refitter(engine, logger), logger)
        if not refitter.refit_from_file(str(bundle.model_path)):
            raise BuildError(
                f"the weights of {bundle.model_path} cannot be put into the plan {plan.path}: "
                "build again"
            )
    return runtime, engine


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The plan's bytes without a copy of them."""
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        yield content


def _make_logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]  # a class of a library without types
        """Keeps what went wrong."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)

    return Logger()
