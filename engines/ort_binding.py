"""Runs a session on arrays that stay on its device from one call to the next.

Inputs are copied into the buffers of the last call as long as shapes stay the same, and outputs are
written into those of the last call: nothing is allocated on the device then. **Unrun on a GPU**; the
same code is tested on the CPU's memory.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnport.export.records import TensorSpec


class Binding:
    """The buffers of one call at a time.

    Args:
        session: The session.
        inputs: Its inputs.
        outputs: Its outputs.
        device: "cuda" or "cpu".
    """

    def __init__(
        self,
        session: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        device: str,
    ) -> None:
        self._session, self._device = session, device
        self._inputs, self._outputs = inputs, outputs
        self._binding: Any = session.io_binding()
        self._values: dict[str, Any] = {}
        self._shapes: tuple[tuple[int, ...], ...] = ()

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes every output; the arrays given back are the caller's own."""
        shapes = tuple(feeds[spec.name].shape for spec in self._inputs)
        same = shapes == self._shapes
        for spec in self._inputs:
            if same:
                self._values[spec.name].update_inplace(feeds[spec.name])
            else:
                self._bind_input(spec, feeds[spec.name])
        if not same:
            self._binding.clear_binding_outputs()
            for spec in self._outputs:
                self._binding.bind_output(spec.name, self._device)
            self._shapes = ()
        self._session.run_with_iobinding(self._binding)
        results = self._binding.get_outputs()
        if not same:
            # From now on these very buffers are written again.
            for spec, value in zip(self._outputs, results, strict=True):
                self._binding.bind_ortvalue_output(spec.name, value)
            self._shapes = shapes
        return {
            # A copy: on the CPU it is a view of what the next run overwrites.
            spec.name: np.array(value.numpy())
            for spec, value in zip(self._outputs, results, strict=True)
        }

    def _bind_input(self, spec: TensorSpec, array: np.ndarray) -> None:
        import onnxruntime

        # On the CPU it would keep the caller's array: a copy is the engine's own.
        own = array.copy() if self._device == "cpu" else array
        value = onnxruntime.OrtValue.ortvalue_from_numpy(own, self._device, 0)
        self._values[spec.name] = value
        self._binding.bind_ortvalue_input(spec.name, value)


class BindingPool:
    """Bindings for several threads: each call takes one, and one more is made where none is free.

    Args:
        session: The session, which may be run by several threads at a time.
        inputs: Its inputs.
        outputs: Its outputs.
        device: "cuda" or "cpu".
    """

    def __init__(
        self,
        session: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        device: str,
    ) -> None:
        self._make: Callable[[], Binding] = lambda: Binding(session, inputs, outputs, device)
        # The last one used is taken first: its buffers most likely have the shapes of this call.
        self._free: queue.LifoQueue[Binding] = queue.LifoQueue()

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes every output with a binding of this call's own."""
        try:
            binding = self._free.get_nowait()
        except queue.Empty:
            binding = self._make()
        # One that failed is dropped, with whatever state it is in.
        results = binding.run(feeds)
        self._free.put(binding)
        return results
