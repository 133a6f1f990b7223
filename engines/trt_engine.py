"""A TensorRT plan on a CUDA device, through Polygraphy's runner.

**Unrun on a GPU**: this file was written and type-checked where there is none.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.engines.kinds import EngineKind
from attnport.engines.plan import EnginePlan
from attnport.errors import BuildError, EngineUnavailableError, UsageError
from attnport.export.bundle import Bundle

_USE_RTX = "POLYGRAPHY_USE_TENSORRT_RTX"


class TrtEngine(Engine):
    """A plan with its execution context and device buffers. Unrun on a GPU.

    Args:
        bundle: What the plan was built from: it gives names and ranges.
        kind: "tensorrt" or "tensorrt-rtx".
        plan: The plan.

    Raises:
        BuildError: If TensorRT does not take the plan.
    """

    def __init__(self, bundle: Bundle, kind: EngineKind, plan: EnginePlan) -> None:
        self.kind = kind.name
        self.inputs = bundle.manifest.inputs
        self.outputs = bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)
        self._has_bfloat16 = any(
            spec.dtype == "bfloat16" for spec in (*self.inputs, *self.outputs)
        )
        layers = plan.fusion.layers if plan.fusion else ()
        self._layer_count = sum(layer.profile == 0 for layer in layers)
        self._runner: Any = _open_runner(kind, plan)
        # One execution context with one set of device buffers: a second run would overwrite them.
        self._one_at_a_time = threading.Lock()

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        checked = self._check(feeds)
        with self._one_at_a_time:
            if self._runner is None:
                raise UsageError(f"this {self.kind} engine was closed: open it again")
            if self._has_bfloat16:
                return self._run_bfloat16(checked)
            results = self._runner.infer(checked, check_inputs=False)
            # A copy: the runner gives views of buffers that its next run overwrites.
            return {output.name: np.array(results[output.name]) for output in self.outputs}

    def _run_bfloat16(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Through torch tensors, since Polygraphy has no bfloat16 of numpy's."""
        from attnport.export.module_forms import to_numpy, to_torch

        tensors = {name: to_torch(array) for name, array in feeds.items()}
        results = self._runner.infer(tensors, check_inputs=False)
        return {output.name: to_numpy(results[output.name]).copy() for output in self.outputs}

    def placement(self) -> dict[str, int]:
        """How many layers of the plan's first profile the device runs."""
        return {"cuda": self._layer_count}

    def close(self) -> None:
        with self._one_at_a_time:
            if self._runner is not None:
                self._runner.deactivate()
                self._runner = None


def _open_runner(kind: EngineKind, plan: EnginePlan) -> Any:
    with _polygraphy_for(kind):
        from polygraphy.backend.common import BytesFromPath
        from polygraphy.backend.trt import EngineFromBytes, TrtRunner
        from polygraphy.exception import PolygraphyException
        from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.ERROR
    runner = TrtRunner(EngineFromBytes(BytesFromPath(str(plan.path))))
    try:
        runner.activate()
    except PolygraphyException as err:
        raise BuildError(
            f"{kind.name} does not take the plan {plan.path} here ({err}): it was built by another "
            f"version or for another device, so build again on this machine"
        ) from err
    return runner


@contextlib.contextmanager
def _polygraphy_for(kind: EngineKind) -> Iterator[None]:
    """Imports Polygraphy for one of the two libraries; it chooses once for the whole process.

    Polygraphy 0.53 reads the variable when it is imported.
    """
    wanted = kind.library == "tensorrt_rtx"
    before = os.environ.get(_USE_RTX)
    os.environ[_USE_RTX] = "1" if wanted else "0"
    try:
        from polygraphy import config

        if bool(config.USE_TENSORRT_RTX) != wanted:
            raise EngineUnavailableError(
                f"Polygraphy was loaded for the other TensorRT in this process, and serves "
                f"one: run {kind.name} in a process of its own"
            )
        yield
    finally:
        if before is None:
            del os.environ[_USE_RTX]
        else:
            os.environ[_USE_RTX] = before
