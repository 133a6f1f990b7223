"""One engine's turn on a device, timed by events: between two, the device does one run.

What an event-to-event time holds is the device's own time, and the gaps in which it waits for the
host to launch the next kernel. A CUDA graph takes the gaps away: the two stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.engines.cuda_device import Device
from attnport.engines.resident.base import Resident
from attnport.validate.latency_turns import MOST_RUNS


class Rotating:
    """Runs of an engine, each on the next of its sets of inputs.

    Args:
        resident: The engine.
    """

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        self._next = 0

    def __call__(self) -> None:
        self.resident.launch(self._next)
        self._next = (self._next + 1) % self.resident.sets


class EventTimer:
    """Times runs by pairs of events.

    Args:
        device: The device.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events: list[tuple[Any, Any]] = []

    def turn(self, run: Rotating, count: int) -> list[float]:
        """Latencies of `count` runs in microseconds; at most `MOST_RUNS`."""
        count = min(count, MOST_RUNS)
        while len(self._events) < count:
            self._events.append((self._device.new_event(), self._device.new_event()))
        stream = run.resident.stream
        run()  # the caches still hold the previous engine's weights
        for start, end in self._events[:count]:
            self._device.record(start, stream)
            run()
            self._device.record(end, stream)
        self._device.synchronize(stream)
        return [1e3 * self._device.elapsed_ms(*pair) for pair in self._events[:count]]

    def close(self) -> None:
        """Gives the events back."""
        for pair in self._events:
            for event in pair:
                self._device.free_event(event)
        self._events = []


def copies_us(
    device: Device, arrays: Mapping[str, np.ndarray], *, to_device: bool, repeats: int = 21
) -> float:
    """The median time in microseconds that copying all arrays takes, one after the other.

    The host's side is ordinary memory, as numpy's is; CUDA stages it through its own.

    Args:
        device: The device.
        arrays: What is copied.
        to_device: Whether to the device, or back from it.
        repeats: How many times.
    """
    stream, start, end = device.new_stream(), device.new_event(), device.new_event()
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    addresses = {name: device.allocate(array.nbytes) for name, array in whole.items()}
    found = []
    try:
        for _ in range(repeats):
            device.record(start, stream)
            for name, array in whole.items():
                if to_device:
                    device.copy_in(addresses[name], array, stream)
                else:
                    device.copy_out(array, addresses[name], stream)
            device.record(end, stream)
            device.synchronize(stream)
            found.append(1e3 * device.elapsed_ms(start, end))
    finally:
        for address in addresses.values():
            device.free(address)
        for event in (start, end):
            device.free_event(event)
        device.free_stream(stream)
    return float(np.median(found))
