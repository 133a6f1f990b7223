"""The PyTorch module on the device, in one of its forms: the peer on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.engines.cuda_device import Device
from attnport.engines.resident.base import Resident
from attnport.engines.torch_engine import TorchEngine, settings
from attnport.errors import EngineUnavailableError

if TYPE_CHECKING:
    import torch


class ResidentModule(Resident):
    """A copy of the module and every set of inputs as tensors on the device.

    Args:
        engine: The form of the module, opened on the CPU; it is moved to the device.
        device: Where the stream comes from.
        feeds: The inputs.
        sets: How many times they are laid on the device.
        where: torch's name of the device.
        cuda_graphs: Whether to record a run on each set as a CUDA graph, and launch that.

    Raises:
        EngineUnavailableError: If the module cannot be recorded.
    """

    def __init__(
        self,
        engine: TorchEngine,
        device: Device,
        feeds: Mapping[str, np.ndarray],
        sets: int,
        *,
        where: str = "cuda",
        cuda_graphs: bool = False,
    ) -> None:
        from attnport.export.module_forms import to_torch

        self._device, self._where, self.sets = device, where, sets
        self._kind = engine.kind
        self._names = [spec.name for spec in engine.outputs]
        self.stream = device.new_stream()
        self._module: torch.nn.Module | None = engine.module.to(where)
        self._inputs = [
            {name: to_torch(array).to(where) for name, array in feeds.items()} for _ in range(sets)
        ]
        self._outputs: list[list[torch.Tensor]] = [[] for _ in range(sets)]
        self._graphs: list[Any] = []
        if cuda_graphs:
            self._graphs = self._recorded()

    def launch(self, which: int) -> None:
        if not self._graphs:
            with self._on_stream():
                self._run(which)
        else:
            with self._on_stream():
                self._graphs[which].replay()

    def result(self, which: int) -> dict[str, np.ndarray]:
        from attnport.export.module_forms import to_numpy

        self._device.synchronize(self.stream)
        return {
            name: to_numpy(tensor)
            for name, tensor in zip(self._names, self._outputs[which], strict=True)
        }

    def close(self) -> None:
        if self._module is not None:
            self._graphs, self._outputs, self._inputs, self._module = [], [], [], None
            self._device.free_stream(self.stream)

    def _run(self, which: int) -> None:
        from attnport.export.module_forms import call_module

        assert self._module is not None
        with settings(self._kind, None):
            self._outputs[which] = call_module(self._module, self._inputs[which])

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        import torch

        if self._where != "cuda":
            yield
            return
        with torch.cuda.stream(self._torch_stream()):
            yield

    def _torch_stream(self) -> torch.cuda.Stream:
        import torch

        # torch 2.13 annotates it not.
        return torch.cuda.ExternalStream(self.stream)  # type: ignore[no-untyped-call]

    def _recorded(self) -> list[Any]:
        import torch

        if self._where != "cuda":
            raise EngineUnavailableError(f"{self._where} records no CUDA graphs")
        stream = self._torch_stream()
        graphs = []
        for which in range(self.sets):
            with self._on_stream():
                for _ in range(3):  # what is compiled or allocated at first is no part of a graph
                    self._run(which)
            self._device.synchronize(self.stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    self._run(which)
            except RuntimeError as err:
                raise EngineUnavailableError(
                    f"the module cannot be recorded as a CUDA graph ({str(err).splitlines()[0]})"
                ) from err
            graphs.append(graph)
        return graphs
