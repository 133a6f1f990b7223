"""One execution context of a TensorRT engine, with a stream and buffers of its own.

A context runs one call at a time; several threads take one each. **Unrun on a GPU**; its logic is
tested with a device of host memory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnport.engines.cuda_device import Device
from attnport.errors import EngineUnavailableError, GraphError
from attnport.export.arrays import numpy_dtype
from attnport.export.records import TensorSpec

Shapes = tuple[tuple[int, ...], ...]


class PlanContext:
    """A context in one optimization profile.

    Args:
        engine: TensorRT's ICudaEngine.
        device: The device that it lives on.
        profile: Index of the optimization profile.
        inputs: The inputs.
        outputs: The outputs.
        cuda_graphs: Whether to record a run, and launch that while the shapes stay the same.

    Raises:
        EngineUnavailableError: If the device has not enough memory for another context.
    """

    def __init__(
        self,
        engine: Any,
        device: Device,
        profile: int,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        cuda_graphs: bool = False,
    ) -> None:
        self._device, self._inputs, self._outputs = device, inputs, outputs
        self._cuda_graphs = cuda_graphs
        self._buffers: dict[str, tuple[int, int]] = {}  # name -> (address, capacity in bytes)
        self._graph: Any = None
        self._shapes: Shapes | None = None
        self._context = engine.create_execution_context()
        if self._context is None:
            raise EngineUnavailableError(
                "TensorRT gives no execution context, most likely for want of device memory: "
                "free some, or use fewer threads"
            )
        self._stream = device.new_stream()
        if not self._context.set_optimization_profile_async(profile, self._stream):
            raise EngineUnavailableError(
                f"TensorRT does not take profile {profile} of the plan: build it again"
            )
        device.synchronize(self._stream)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes every output; feeds are checked, and the arrays given back are the caller's."""
        shapes = tuple(feeds[spec.name].shape for spec in self._inputs)
        if shapes != self._shapes:
            self._take_shapes(feeds)
            self._shapes = shapes
        for spec in self._inputs:
            address, _ = self._buffers[spec.name]
            self._device.copy_in(address, feeds[spec.name], self._stream)
        self._launch()
        results = {
            spec.name: np.empty(self._output_shape(spec), numpy_dtype(spec.dtype))
            for spec in self._outputs
        }
        for name, array in results.items():
            self._device.copy_out(array, self._buffers[name][0], self._stream)
        self._device.synchronize(self._stream)
        return results

    def close(self) -> None:
        """Frees everything; the context is of no use afterwards."""
        self._forget_graph()
        for address, _ in self._buffers.values():
            self._device.free(address)
        self._buffers.clear()
        self._context = None
        self._device.free_stream(self._stream)

    def _take_shapes(self, feeds: Mapping[str, np.ndarray]) -> None:
        self._shapes = None  # until all of them are taken
        # It has the shapes and the addresses of when it was recorded.
        self._forget_graph()
        for spec in self._inputs:
            array = feeds[spec.name]
            if not self._context.set_input_shape(spec.name, array.shape):
                raise GraphError(
                    f"TensorRT refuses the shape {array.shape} of {spec.name!r}: it lies outside "
                    "of the plan's profile, so the plan is not of this bundle; build again"
                )
            self._provide(spec.name, array.nbytes)
        for spec in self._outputs:
            shape = self._output_shape(spec)
            if any(size < 0 for size in shape):
                raise GraphError(
                    f"the shape {shape} of the output {spec.name!r} depends on values, not on "
                    "shapes alone, which is not run: export the model without it"
                )
            size = int(np.prod(shape, dtype=np.int64))
            self._provide(spec.name, size * numpy_dtype(spec.dtype).itemsize)

    def _output_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        return tuple(self._context.get_tensor_shape(spec.name))

    def _provide(self, name: str, nbytes: int) -> None:
        """A buffer of at least that size; one that is large enough stays where it is."""
        address, capacity = self._buffers.get(name, (0, -1))
        if capacity >= nbytes:
            return
        if capacity >= 0:
            self._device.free(address)
            del self._buffers[name]
        address = self._device.allocate(nbytes)
        self._buffers[name] = (address, nbytes)
        self._context.set_tensor_address(name, address)

    def _launch(self) -> None:
        if self._graph is not None:
            self._device.launch_graph(self._graph, self._stream)
            return
        self._enqueue()
        if self._cuda_graphs:
            # Recorded after a run, since the first run of a shape may allocate and compile.
            self._device.synchronize(self._stream)
            self._require_capturable()
            self._graph = self._device.capture(self._enqueue, self._stream)

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream):
            raise GraphError("TensorRT failed while it ran the plan: see its messages above")

    def _require_capturable(self) -> None:
        """TensorRT for RTX says of some engines that they cannot be recorded."""
        asks = getattr(self._context, "is_stream_capturable", None)
        if asks is not None and not asks(self._stream):
            raise EngineUnavailableError(
                "this plan cannot be recorded as a CUDA graph: open it without cuda_graphs"
            )

    def _forget_graph(self) -> None:
        if self._graph is not None:
            self._device.free_graph(self._graph)
            self._graph = None


class ContextPool:
    """Contexts for several threads: a call takes a free one, or a new one up to a number.

    Args:
        make: Makes a context for a profile.
        most: How many contexts of each profile there may be; more threads wait.
    """

    def __init__(self, make: Any, most: int) -> None:
        self._make, self._most = make, most
        self._lock = threading.Lock()
        self._free: dict[int, queue.LifoQueue[PlanContext]] = {}
        self._made: dict[int, list[PlanContext]] = {}

    def run(self, profile: int, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs in a context of that profile."""
        context = self._take(profile)
        try:
            return context.run(feeds)
        finally:
            self._free[profile].put(context)

    def close(self) -> None:
        """Frees every context; none may be running."""
        with self._lock:
            for contexts in self._made.values():
                for context in contexts:
                    context.close()
            self._made.clear()
            self._free.clear()

    def _take(self, profile: int) -> PlanContext:
        with self._lock:
            # The last one used first: its buffers most likely have the shapes of this call.
            free = self._free.setdefault(profile, queue.LifoQueue())
            made = self._made.setdefault(profile, [])
            if free.empty() and len(made) < self._most:
                made.append(self._make(profile))
                return made[-1]
        return free.get()
