"""A device of host memory, and an engine on it: a GPU is what cannot exist here.

The engine computes y = 2x + mean of the inputs' sizes where its context was told it lies, so that a
buffer that was not filled, a shape that was not set or a graph of other addresses all show.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class HostDevice:
    """Memory of this process in place of a device's; a stream is a list of what was given to it."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.streams: dict[int, list[str]] = {}
        self.graphs = 0
        self.allocations = 0
        self.events = 0
        # Time as work makes it pass: a run and a copy take these many milliseconds each.
        self.now_ms: dict[int, float] = {}
        self.run_ms, self.copy_ms = 2.0, 0.5
        self.cache = 1 << 10
        self._recording: dict[int, list[Callable[[], None]]] = {}
        self._lock = threading.Lock()

    def new_stream(self) -> int:
        with self._lock:
            stream = len(self.streams) + 1
            self.streams[stream] = []
            return stream

    def free_stream(self, stream: int) -> None:
        del self.streams[stream]

    def allocate(self, nbytes: int) -> int:
        with self._lock:
            buffer = ctypes.create_string_buffer(max(nbytes, 1))
            self.memory[ctypes.addressof(buffer)] = buffer
            self.allocations += 1
            return ctypes.addressof(buffer)

    def free(self, address: int) -> None:
        del self.memory[address]

    def copy_in(self, address: int, array: np.ndarray, stream: int) -> None:
        assert address in self.memory
        assert array.flags.c_contiguous
        self.streams[stream].append("in")
        self._pass(stream, self.copy_ms)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def copy_out(self, array: np.ndarray, address: int, stream: int) -> None:
        assert address in self.memory
        self.streams[stream].append("out")
        self._pass(stream, self.copy_ms)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def synchronize(self, stream: int) -> None:
        self.streams[stream].append("wait")

    def capture(self, launch: Callable[[], None], stream: int) -> list[Callable[[], None]]:
        self._recording[stream] = []
        launch()
        self.graphs += 1
        return self._recording.pop(stream)

    def launch_graph(self, graph: list[Callable[[], None]], stream: int) -> None:
        self.streams[stream].append("graph")
        self._pass(stream, self.run_ms)
        for work in graph:
            work()

    def free_graph(self, graph: list[Callable[[], None]]) -> None:
        graph.clear()
        self.graphs -= 1

    def submit(self, work: Callable[[], None], stream: int) -> None:
        if stream in self._recording:
            self._recording[stream].append(work)
        else:
            self.streams[stream].append("run")
            self._pass(stream, self.run_ms)
            work()

    def new_event(self) -> list[float]:
        self.events += 1
        return []

    def free_event(self, event: list[float]) -> None:
        self.events -= 1

    def record(self, event: list[float], stream: int) -> None:
        event[:] = [self.now_ms.get(stream, 0.0)]

    def elapsed_ms(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]

    def cache_bytes(self) -> int:
        return self.cache

    def free_bytes(self) -> int:
        return 1 << 20

    def _pass(self, stream: int, milliseconds: float) -> None:
        self.now_ms[stream] = self.now_ms.get(stream, 0.0) + milliseconds


class DoublingEngine:
    """y = 2x, in as many profiles as asked for; `unknown` makes y's shape depend on values."""

    def __init__(self, device: HostDevice, *, profiles: int = 1, unknown: bool = False) -> None:
        self.device, self.profiles, self.unknown = device, profiles, unknown
        self.contexts: list[DoublingContext] = []

    def create_execution_context(self) -> DoublingContext:
        self.contexts.append(DoublingContext(self))
        return self.contexts[-1]


class DoublingContext:
    """What of IExecutionContext an engine of ours uses."""

    def __init__(self, engine: DoublingEngine) -> None:
        self._engine = engine
        self.profile: int | None = None
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.capturable = True

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return profile < self._engine.profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = tuple(shape)
        return all(size <= 64 for size in shape)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,) if self._engine.unknown else self.shape

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self.capturable

    def execute_async_v3(self, stream: int) -> bool:
        source, target, shape = self.addresses["x"], self.addresses["y"], self.shape

        def double() -> None:
            count = int(np.prod(shape, dtype=np.int64))
            x, y = (
                np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(at)).view(np.float16)
                for at in (source, target)
            )
            y[:] = 2 * x

        self._engine.device.submit(double, stream)
        return True
