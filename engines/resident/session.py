"""The graph in ONNX Runtime with inputs and outputs bound on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.engines.cuda_device import Device
from attnport.engines.kinds import EngineKind
from attnport.engines.lowering import lower_bundle
from attnport.engines.ort_session import DISABLED_OPTIMIZERS, create_session, load_cuda_libraries
from attnport.engines.resident.base import Resident
from attnport.export.bundle import Bundle


class ResidentSession(Resident):
    """A session with a binding for every set of inputs.

    On CUDA it computes on a stream of ours and does not wait at the end of a run, so that events of
    that stream time it.

    Args:
        bundle: The bundle.
        kind: "ort-cuda", or a kind of the CPU.
        device: Where the stream comes from.
        feeds: The inputs.
        sets: How many times they are laid on the device.
        cuda_graphs: Whether ONNX Runtime records a run on each set, and replays that.
    """

    def __init__(
        self,
        bundle: Bundle,
        kind: EngineKind,
        device: Device,
        feeds: Mapping[str, np.ndarray],
        sets: int,
        *,
        cuda_graphs: bool = False,
    ) -> None:
        self._device, self.sets = device, sets
        self._where = kind.device
        self._names = [spec.name for spec in bundle.manifest.outputs]
        self.stream = device.new_stream()
        load_cuda_libraries(kind.provider)
        lowered = lower_bundle(bundle, kind.name)
        self._session: Any = create_session(
            lowered.content or bundle.model_path,
            bundle.path,
            kind.provider,
            DISABLED_OPTIMIZERS,
            provider_options=self._provider_options(cuda_graphs),
        )
        self._bindings = [self._bound(feeds) for _ in range(sets)]
        self._options = [self._run_options(which, cuda_graphs) for which in range(sets)]

    def launch(self, which: int) -> None:
        self._session.run_with_iobinding(self._bindings[which], self._options[which])

    def result(self, which: int) -> dict[str, np.ndarray]:
        self._device.synchronize(self.stream)
        values = self._bindings[which].get_outputs()
        return {
            name: np.array(value.numpy()) for name, value in zip(self._names, values, strict=True)
        }

    def close(self) -> None:
        if self._session is not None:
            self._bindings, self._session = [], None
            self._device.free_stream(self.stream)

    def _provider_options(self, cuda_graphs: bool) -> dict[str, str]:
        if self._where != "cuda":
            return {}
        graphs = {"enable_cuda_graph": "1"} if cuda_graphs else {}
        return {"user_compute_stream": str(self.stream), **graphs}

    def _run_options(self, which: int, cuda_graphs: bool) -> Any:
        import onnxruntime

        options = onnxruntime.RunOptions()
        if self._where == "cuda":
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if cuda_graphs:
            # A graph has the addresses it was recorded with: one for each set.
            options.add_run_config_entry("gpu_graph_id", str(which + 1))
        return options

    def _bound(self, feeds: Mapping[str, np.ndarray]) -> Any:
        """A binding; its outputs are those that a first run allocates, kept from then on."""
        import onnxruntime

        binding = self._session.io_binding()
        for name, array in feeds.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array.copy(), self._where, 0)
            binding.bind_ortvalue_input(name, value)
        for name in self._names:
            binding.bind_output(name, self._where)
        self._session.run_with_iobinding(binding, self._unrecorded())
        outputs = binding.get_outputs()
        for name, value in zip(self._names, outputs, strict=True):
            binding.bind_ortvalue_output(name, value)
        return binding

    def _unrecorded(self) -> Any:
        import onnxruntime

        options = onnxruntime.RunOptions()
        if self._where == "cuda":
            options.add_run_config_entry("gpu_graph_id", "-1")  # of no graph
        return options
