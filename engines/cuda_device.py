"""Memory, streams and graphs of a CUDA device, through NVIDIA's cuda-bindings.

**Unrun on a GPU**: without one every call answers with an error, which is all that was seen of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from attnport.errors import EngineUnavailableError, InternalError


class Device(Protocol):
    """What an execution context needs of a device; tests have one of host memory."""

    def new_stream(self) -> int:
        """A stream's handle, as TensorRT takes it."""

    def free_stream(self, stream: int) -> None:
        """Ends a stream."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""

    def free(self, address: int) -> None:
        """Gives memory back."""

    def copy_in(self, address: int, array: np.ndarray, stream: int) -> None:
        """Copies a C-contiguous array to the device; it must live until the stream is done."""

    def copy_out(self, array: np.ndarray, address: int, stream: int) -> None:
        """Copies from the device into a C-contiguous array."""

    def synchronize(self, stream: int) -> None:
        """Waits until all of the stream is done."""

    def capture(self, launch: Callable[[], None], stream: int) -> Any:
        """Records what `launch` gives to the stream as a graph, without running it."""

    def launch_graph(self, graph: Any, stream: int) -> None:
        """Runs a graph on the stream."""

    def free_graph(self, graph: Any) -> None:
        """Gives a graph back."""

    def new_event(self) -> Any:
        """A point in time on the device, to be recorded."""

    def free_event(self, event: Any) -> None:
        """Gives an event back."""

    def record(self, event: Any, stream: int) -> None:
        """Marks the event when the stream has done all that was given to it so far."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two events of a stream that is done."""

    def cache_bytes(self) -> int:
        """Size of the level-2 cache."""

    def free_bytes(self) -> int:
        """Memory that is free."""


class CudaDevice:
    """The current CUDA device of this process.

    Raises:
        EngineUnavailableError: From every method, where CUDA reports an error of the machine.
    """

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._cuda: Any = runtime

    def new_stream(self) -> int:
        # Not the legacy stream, nor one that waits for it: other threads go on meanwhile.
        flag = self._cuda.cudaStreamNonBlocking
        return int(self._checked(self._cuda.cudaStreamCreateWithFlags(flag)))

    def free_stream(self, stream: int) -> None:
        self._checked(self._cuda.cudaStreamDestroy(stream))

    def allocate(self, nbytes: int) -> int:
        # TensorRT takes no null address, not even for a tensor of zero elements.
        return int(self._checked(self._cuda.cudaMalloc(max(nbytes, 1))))

    def free(self, address: int) -> None:
        self._checked(self._cuda.cudaFree(address))

    def copy_in(self, address: int, array: np.ndarray, stream: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        source = array.ctypes.data
        self._checked(self._cuda.cudaMemcpyAsync(address, source, array.nbytes, kind, stream))

    def copy_out(self, array: np.ndarray, address: int, stream: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        target = array.ctypes.data
        self._checked(self._cuda.cudaMemcpyAsync(target, address, array.nbytes, kind, stream))

    def synchronize(self, stream: int) -> None:
        self._checked(self._cuda.cudaStreamSynchronize(stream))

    def capture(self, launch: Callable[[], None], stream: int) -> Any:
        # Thread-local: what other threads ask of CUDA meanwhile neither joins nor breaks it.
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._checked(self._cuda.cudaStreamBeginCapture(stream, mode))
        try:
            launch()
        finally:
            graph = self._checked(self._cuda.cudaStreamEndCapture(stream))
        try:
            return self._checked(self._cuda.cudaGraphInstantiate(graph, 0))
        finally:
            self._checked(self._cuda.cudaGraphDestroy(graph))

    def launch_graph(self, graph: Any, stream: int) -> None:
        self._checked(self._cuda.cudaGraphLaunch(graph, stream))

    def free_graph(self, graph: Any) -> None:
        self._checked(self._cuda.cudaGraphExecDestroy(graph))

    def new_event(self) -> Any:
        return self._checked(self._cuda.cudaEventCreate())

    def free_event(self, event: Any) -> None:
        self._checked(self._cuda.cudaEventDestroy(event))

    def record(self, event: Any, stream: int) -> None:
        self._checked(self._cuda.cudaEventRecord(event, stream))

    def elapsed_ms(self, start: Any, end: Any) -> float:
        return float(self._checked(self._cuda.cudaEventElapsedTime(start, end)))

    def cache_bytes(self) -> int:
        current = self._checked(self._cuda.cudaGetDevice())
        which = self._cuda.cudaDeviceAttr.cudaDevAttrL2CacheSize
        return int(self._checked(self._cuda.cudaDeviceGetAttribute(which, current)))

    def free_bytes(self) -> int:
        status, free, _ = self._cuda.cudaMemGetInfo()
        return int(self._checked((status, free)))

    def _checked(self, answer: tuple[Any, ...]) -> Any:
        """The value of an answer (status, value…)."""
        status, *values = answer
        if status != self._cuda.cudaError_t.cudaSuccess:
            name = self._cuda.cudaGetErrorName(status)[1].decode()
            said = self._cuda.cudaGetErrorString(status)[1].decode()
            if status == self._cuda.cudaError_t.cudaErrorInvalidValue:
                raise InternalError(f"CUDA was called wrongly ({name}: {said}): please report it")
            remedy = "free some, or use smaller sizes" if "Memory" in name else "see nvidia-smi"
            raise EngineUnavailableError(f"the CUDA device fails ({name}: {said}): {remedy}")
        return values[0] if values else None
