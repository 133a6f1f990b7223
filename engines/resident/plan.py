"""A TensorRT plan whose inputs lie on the device, launched as it is or as a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.engines.profiles import fitting_profile
from attnport.engines.resident.base import Resident
from attnport.engines.trt_engine import TrtEngine, axis_sizes
from attnport.errors import EngineUnavailableError, GraphError, InputError
from attnport.export.arrays import numpy_dtype


class ResidentPlan(Resident):
    """One execution context of a plan, and buffers for every set of inputs.

    Args:
        engine: The opened plan; it must stay open.
        feeds: The inputs.
        sets: How many times they are laid on the device.
        cuda_graphs: Whether to record a run on each set, and launch that.

    Raises:
        InputError: If no profile of the plan takes the inputs.
        EngineUnavailableError: If the device has not enough memory.
        GraphError: If TensorRT refuses the shapes, or fails.
    """

    def __init__(
        self,
        engine: TrtEngine,
        feeds: Mapping[str, np.ndarray],
        sets: int,
        *,
        cuda_graphs: bool = False,
    ) -> None:
        self._device, self._specs, self.sets = engine.device, engine.outputs, sets
        self._addresses: list[dict[str, int]] = []
        self._graphs: list[Any] = []
        self._bound = -1
        self._context: Any = engine.plan_engine.create_execution_context()
        if self._context is None:
            raise EngineUnavailableError(
                "TensorRT gives no execution context, most likely for want of device memory: free some"
            )
        self.stream = self._device.new_stream()
        self._take_shapes(engine, feeds)
        for _ in range(sets):
            self._addresses.append(self._lay_out(feeds))
        self._device.synchronize(self.stream)
        if cuda_graphs:
            self._record()

    def launch(self, which: int) -> None:
        if self._graphs:
            self._device.launch_graph(self._graphs[which], self.stream)
        else:
            self._bind(which)
            self._enqueue()

    def result(self, which: int) -> dict[str, np.ndarray]:
        results = {
            spec.name: np.empty(self._output_shape(spec.name), numpy_dtype(spec.dtype))
            for spec in self._specs
        }
        for name, array in results.items():
            self._device.copy_out(array, self._addresses[which][name], self.stream)
        self._device.synchronize(self.stream)
        return results

    def close(self) -> None:
        for graph in self._graphs:
            self._device.free_graph(graph)
        for addresses in self._addresses:
            for address in addresses.values():
                self._device.free(address)
        self._graphs, self._addresses = [], []
        if self._context is not None:
            self._context = None
            self._device.free_stream(self.stream)

    def _take_shapes(self, engine: TrtEngine, feeds: Mapping[str, np.ndarray]) -> None:
        shapes = {name: array.shape for name, array in feeds.items()}
        sizes = axis_sizes(engine.inputs, shapes)
        profile = fitting_profile(engine.profiles, sizes)
        if profile is None:
            given = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InputError(f"no profile of the plan takes {given}: measure another case")
        self._context.set_optimization_profile_async(profile, self.stream)
        for spec in engine.inputs:
            if not self._context.set_input_shape(spec.name, shapes[spec.name]):
                raise GraphError(
                    f"TensorRT refuses the shape {shapes[spec.name]} of {spec.name!r}: build again"
                )

    def _output_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._context.get_tensor_shape(name))

    def _lay_out(self, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
        """A set: the inputs copied to addresses of their own, and room for the outputs."""
        addresses = {}
        for name, array in feeds.items():
            addresses[name] = self._device.allocate(array.nbytes)
            self._device.copy_in(addresses[name], np.ascontiguousarray(array), self.stream)
        for spec in self._specs:
            count = int(np.prod(self._output_shape(spec.name), dtype=np.int64))
            addresses[spec.name] = self._device.allocate(count * numpy_dtype(spec.dtype).itemsize)
        return addresses

    def _bind(self, which: int) -> None:
        if which != self._bound:
            for name, address in self._addresses[which].items():
                self._context.set_tensor_address(name, address)
            self._bound = which

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self.stream):
            raise GraphError("TensorRT failed while it ran the plan: see its messages above")

    def _record(self) -> None:
        asks = getattr(self._context, "is_stream_capturable", None)
        graphs = []
        for which in range(self.sets):
            self._bind(which)
            self._enqueue()  # the first run of a shape may allocate, which no graph may
            self._device.synchronize(self.stream)
            if asks is not None and not asks(self.stream):
                raise EngineUnavailableError("this plan cannot be recorded as a CUDA graph")
            graphs.append(self._device.capture(self._enqueue, self.stream))
        self._graphs = graphs
