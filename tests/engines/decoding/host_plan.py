"""A plan in host memory: the graph by hand, run by ONNX Runtime where its context was told.

A GPU is what cannot exist here. A buffer that was not filled, a shape that was not set, a cache that
was left in the other buffer: each gives other logits.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime
from tests.engines.host_device import HostDevice

from attnport.axes import Axis
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle


class HostPlan:
    """What of TrtEngine the caches in device memory use."""

    def __init__(self, bundle: Bundle, profiles: tuple[dict[str, Axis], ...]) -> None:
        self.kind = "tensorrt-rtx"
        self.inputs, self.outputs = bundle.manifest.inputs, bundle.manifest.outputs
        self.profiles = profiles
        self.device = HostDevice()
        self.session = onnxruntime.InferenceSession(
            bundle.model_path, providers=["CPUExecutionProvider"]
        )
        self.contexts: list[HostContext] = []
        self.closed = False

    @property
    def plan_engine(self) -> HostPlan:
        return self

    def create_execution_context(self) -> HostContext:
        self.contexts.append(HostContext(self))
        return self.contexts[-1]

    def close(self) -> None:
        self.closed = True


class HostContext:
    """What of IExecutionContext they use."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        self.profile = -1
        self.runs = 0
        self.addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address in self._plan.device.memory
        self.addresses[name] = address
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        sizes = {
            dim: size
            for spec in self._plan.inputs
            for dim, size in zip(spec.shape, self._shapes[spec.name], strict=True)
        }
        spec = next(one for one in self._plan.outputs if one.name == name)
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape)

    def execute_async_v3(self, stream: int) -> bool:
        self.runs += 1
        feeds = {
            s.name: self._array(s.name, s.dtype, self._shapes[s.name]) for s in self._plan.inputs
        }
        results = self._plan.session.run([s.name for s in self._plan.outputs], feeds)
        for spec, result in zip(self._plan.outputs, results, strict=True):
            self._array(spec.name, spec.dtype, result.shape)[...] = result
        return True

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        kind = numpy_dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        memory: Any = self._plan.device.memory[self.addresses[name]]
        assert nbytes <= ctypes.sizeof(memory)
        return np.frombuffer(memory, kind, count=nbytes // kind.itemsize).reshape(shape)
