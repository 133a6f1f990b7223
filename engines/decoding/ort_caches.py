"""Caches as ONNX Runtime's own values, bound from one step to the next.

Growing caches: what a step gives is bound as what the next one takes, the very buffer. Static ones:
input and output are bound to one buffer, in which TensorScatter and ScatterND write the new rows
alone (onnxruntime 1.32; bound apart, they copy the whole buffer first). On CUDA **unrun**: the same
calls with another device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.engines.decoding.caches import CacheStore, Copied
from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.ort_engine import OrtEngine
from attnport.errors import GraphError, UsageError


class OrtCaches(CacheStore):
    """Caches bound to a session.

    Args:
        engine: An opened engine of ONNX Runtime, closed with this store.
        layout: The parts of its graph.
        device: "cpu" or "cuda".
        in_place: For static caches, whether input and output are one buffer. Only a graph in which
            nothing but the write reads a cache's input allows it.
    """

    def __init__(
        self, engine: OrtEngine, layout: DecodingLayout, device: str, *, in_place: bool
    ) -> None:
        self.kind = engine.kind
        self._engine, self._layout, self._device = engine, layout, device
        self._in_place = in_place and layout.kind == "static"
        self._binding: Any = engine.session.io_binding()
        self._caches: dict[str, Any] = {}
        self._spare: dict[str, Any] = {}
        # A binding does not keep alive what is bound: on the CPU that is an array of ours.
        self._bound: dict[str, Any] = {}
        self.keeps = _KEEPS[layout.kind, self._in_place]

    def start(self, past: Mapping[str, np.ndarray], fixed: Mapping[str, np.ndarray]) -> None:
        self._binding.clear_binding_inputs()
        # A copy: on the CPU a value is a view of the array that it is made of.
        self._caches = {name: self._value(np.array(array)) for name, array in past.items()}
        self._spare = {}
        if self._layout.kind == "static" and not self._in_place:
            self._spare = {name: self._value(np.array(array)) for name, array in past.items()}
        for name, array in fixed.items():
            self._bind_input(name, np.array(array))

    def step(self, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Copied]:
        session = self._engine.session
        sent = sum(self._bind_input(name, array) for name, array in feeds.items())
        self._bind_caches()
        try:
            session.run_with_iobinding(self._binding)
        except Exception as err:  # onnxruntime's errors derive from Exception alone
            raise GraphError(
                f"onnxruntime failed in a step of decoding ({str(err).splitlines()[0]}): the graph "
                "does not work for these sizes, so export again or narrow its axes"
            ) from err
        outputs = self._binding.get_outputs()
        result = np.array(outputs[0].numpy())
        self._take_caches(outputs[1:])
        return result, Copied(sent, result.nbytes)

    def read(self) -> dict[str, np.ndarray]:
        return {name: np.array(value.numpy()) for name, value in self._caches.items()}

    def addresses(self) -> dict[str, int]:
        """Where each cache lies now, by the name of its input: to show that none was moved."""
        return {name: int(value.data_ptr()) for name, value in self._caches.items()}

    def close(self) -> None:
        self._binding = None
        self._caches, self._spare, self._bound = {}, {}, {}
        self._engine.close()

    def _bind_input(self, name: str, array: np.ndarray) -> int:
        self._bound[name] = self._value(array)
        self._binding.bind_ortvalue_input(name, self._bound[name])
        return array.nbytes

    def _bind_caches(self) -> None:
        """The order of outputs: the result, then the caches."""
        if not self._caches:
            raise UsageError("the caches were not started: call start before a step")
        self._binding.clear_binding_outputs()
        # The result goes to the host: the next tokens are chosen there.
        self._binding.bind_output(self._layout.result.name, "cpu")
        for cache in self._layout.caches:
            name = cache.input.name
            self._binding.bind_ortvalue_input(name, self._caches[name])
            if self._in_place:
                self._binding.bind_ortvalue_output(cache.output.name, self._caches[name])
            elif self._spare:
                self._binding.bind_ortvalue_output(cache.output.name, self._spare[name])
            else:
                self._binding.bind_output(cache.output.name, self._device)

    def _take_caches(self, outputs: list[Any]) -> None:
        if self._spare:
            # Not the values given: they do not keep alive the arrays that lie under ours.
            self._caches, self._spare = self._spare, self._caches
        elif not self._in_place:
            names = [cache.input.name for cache in self._layout.caches]
            self._caches = dict(zip(names, outputs, strict=True))

    def _value(self, array: np.ndarray) -> Any:
        import onnxruntime

        return onnxruntime.OrtValue.ortvalue_from_numpy(
            np.ascontiguousarray(array), self._device, 0
        )


_KEEPS = {
    ("concat", False): "each step's caches are bound as the next one's, without a copy",
    ("static", True): "one buffer each, bound as input and output: new rows are written in place",
    ("static", False): "two buffers each, in turn: the graph copies the whole cache at every step",
}
