"""Caches in a device's memory, read and written by a TensorRT plan where they lie.

Growing caches have two buffers of the largest size each, which change places after every step;
static ones have one, given to TensorRT as input and output. Tokens, positions and masks go to the
device, the result comes back, and nothing else is copied. **Unrun on a GPU**: tested with a device
of host memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.engines.cuda_device import Device
from attnport.engines.decoding.caches import CacheStore, Copied
from attnport.engines.decoding.layout import Cache, DecodingLayout
from attnport.engines.profiles import fitting_profile
from attnport.engines.trt_engine import TrtEngine, axis_sizes
from attnport.errors import EngineUnavailableError, GraphError, InputError
from attnport.export.arrays import numpy_dtype
from attnport.export.records import TensorSpec


@dataclass
class _Memory:
    """Memory on the device."""

    address: int
    nbytes: int


class PlanCaches(CacheStore):
    """Caches of one batch in device memory.

    Args:
        engine: An opened plan, closed with this store.
        layout: The parts of its graph.
    """

    def __init__(self, engine: TrtEngine, layout: DecodingLayout) -> None:
        self.kind = engine.kind
        self.keeps = _KEEPS[layout.kind]
        self._engine, self._layout = engine, layout
        self._device: Device = engine.device
        self._stream = self._device.new_stream()
        self._contexts: dict[int, Any] = {}
        self._small: dict[str, _Memory] = {}
        self._now: dict[str, _Memory] = {}
        self._next: dict[str, _Memory] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def start(self, past: Mapping[str, np.ndarray], fixed: Mapping[str, np.ndarray]) -> None:
        self._free(self._now, self._next)
        for cache in self._layout.caches:
            name, array = cache.input.name, np.ascontiguousarray(past[cache.input.name])
            nbytes = self._most_bytes(cache, array)
            self._now[name] = _Memory(self._device.allocate(nbytes), nbytes)
            if self._layout.kind == "concat":
                self._next[name] = _Memory(self._device.allocate(nbytes), nbytes)
            if array.nbytes:
                self._device.copy_in(self._now[name].address, array, self._stream)
            self._shapes[name] = array.shape
        for name, array in fixed.items():
            self._send(name, array)
        self._device.synchronize(self._stream)

    def step(self, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Copied]:
        kept = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        for name, array in kept.items():
            self._send(name, array)
        context = self._context()
        for spec in self._engine.inputs:
            shape = self._shapes[spec.name]
            if not context.set_input_shape(spec.name, shape):
                raise GraphError(
                    f"TensorRT refuses the shape {shape} of {spec.name!r}: it lies outside of the "
                    "plan's profile, so the plan is not of this bundle; build again"
                )
        result = self._bind(context)
        if not context.execute_async_v3(self._stream):
            raise GraphError("TensorRT failed while it ran the plan: see its messages above")
        self._device.copy_out(result, self._small[self._layout.result.name].address, self._stream)
        self._device.synchronize(self._stream)
        self._turn(context)
        return result, Copied(sum(array.nbytes for array in kept.values()), result.nbytes)

    def read(self) -> dict[str, np.ndarray]:
        found = {}
        for cache in self._layout.caches:
            name = cache.input.name
            found[name] = np.empty(self._shapes[name], numpy_dtype(cache.input.dtype))
            self._device.copy_out(found[name], self._now[name].address, self._stream)
        self._device.synchronize(self._stream)
        return found

    def close(self) -> None:
        self._contexts.clear()
        self._free(self._now, self._next, self._small)
        if self._stream:
            self._device.free_stream(self._stream)
            self._stream = 0
        self._engine.close()

    def _context(self) -> Any:
        """The context of the narrowest profile that takes the sizes of this step."""
        sizes = axis_sizes(self._engine.inputs, self._shapes)
        profile = fitting_profile(self._engine.profiles, sizes)
        if profile is None:
            given = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InputError(f"no profile of the plan takes {given}: build with one that does")
        if profile not in self._contexts:
            context = self._engine.plan_engine.create_execution_context()
            if context is None or not context.set_optimization_profile_async(
                profile, self._stream
            ):
                raise EngineUnavailableError(
                    "TensorRT gives no execution context, most likely for want of device memory: "
                    "free some, or use a smaller batch"
                )
            self._device.synchronize(self._stream)
            self._contexts[profile] = context
        return self._contexts[profile]

    def _bind(self, context: Any) -> np.ndarray:
        """Tells the context where everything lies; gives the array for the result."""
        caches = {cache.input.name: cache for cache in self._layout.caches}
        for spec in self._engine.inputs:
            memory = self._now if spec.name in caches else self._small
            context.set_tensor_address(spec.name, memory[spec.name].address)
        for name, cache in caches.items():
            context.set_tensor_address(cache.output.name, (self._next or self._now)[name].address)
        written = {cache.output.name for cache in caches.values()}
        # TensorRT wants a place for every output, also for those that nobody reads.
        results = {
            spec.name: np.empty(
                tuple(context.get_tensor_shape(spec.name)), numpy_dtype(spec.dtype)
            )
            for spec in self._engine.outputs
            if spec.name not in written
        }
        for name, array in results.items():
            self._provide(name, array.nbytes)
            context.set_tensor_address(name, self._small[name].address)
        return results[self._layout.result.name]

    def _turn(self, context: Any) -> None:
        """What the step wrote is what the next one reads."""
        for cache in self._layout.caches:
            shape = context.get_tensor_shape(cache.output.name)
            self._shapes[cache.input.name] = tuple(shape)
        if self._next:
            self._now, self._next = self._next, self._now

    def _send(self, name: str, array: np.ndarray) -> None:
        self._provide(name, array.nbytes)
        self._shapes[name] = array.shape
        self._device.copy_in(self._small[name].address, array, self._stream)

    def _provide(self, name: str, nbytes: int) -> None:
        """Memory of at least that size; what is large enough stays where it is."""
        held = self._small.get(name)
        if held is not None and held.nbytes >= nbytes:
            return
        if held is not None:
            self._device.free(held.address)
        self._small[name] = _Memory(self._device.allocate(nbytes), nbytes)

    def _most_bytes(self, cache: Cache, past: np.ndarray) -> int:
        shape = list(past.shape)
        shape[cache.axis] = max(shape[cache.axis], self._most(cache.output, cache.axis))
        return int(math.prod(shape) * past.itemsize)

    def _most(self, spec: TensorSpec, axis: int) -> int:
        dim = spec.shape[axis]
        if self._layout.kind == "static":
            return 0  # it is as long as it will ever be
        return dim if isinstance(dim, int) else self._layout.axes[dim].max

    def _free(self, *memories: dict[str, _Memory]) -> None:
        for memory in memories:
            for held in memory.values():
                self._device.free(held.address)
            memory.clear()


_KEEPS = {
    "concat": "two buffers each on the device, which change places: the engine writes each step's "
    "caches into the other",
    "static": "one buffer each on the device, given as input and output",
}
