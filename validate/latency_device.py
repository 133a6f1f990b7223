"""The engines of a GPU in the measuring process: inputs on the device, with and without CUDA graphs.

**Unrun on a GPU.** What is not CUDA itself is tested on a device of host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.cuda_device import CudaDevice, Device
from attnport.engines.kinds import engine_kind
from attnport.engines.open import open_engine
from attnport.engines.resident.base import Resident
from attnport.errors import AttnportError, EngineUnavailableError
from attnport.export.bundle import Bundle, Case
from attnport.validate.device_turns import EventTimer, Rotating, copies_us
from attnport.validate.finding import Number
from attnport.validate.judgement import judge_outputs
from attnport.validate.latency_job import GRAPH_ENDING, ON_DEVICE_ENDING
from attnport.validate.rotation import Rotation, rotation_for

if TYPE_CHECKING:
    import torch


class DeviceEngines:
    """Opens engines with their inputs on the device, and knows what to say of the measurement.

    Args:
        bundle: The bundle.
        case: Whose inputs.
        module: The module, for the torch forms.
        device: The device; the process's current one by default.

    Attributes:
        rotation: How the sets of inputs take turns.
        timer: Times them.
    """

    def __init__(
        self,
        bundle: Bundle,
        case: Case,
        module: torch.nn.Module | None,
        device: Device | None = None,
    ) -> None:
        self._bundle, self._case, self._module = bundle, case, module
        self._device: Device = device or CudaDevice()
        self._feeds = case.inputs
        self._results = _outputs_like(bundle, case)
        arrays = [*self._feeds.values(), *self._results.values()]
        self.rotation: Rotation = rotation_for(
            sum(array.nbytes for array in arrays),
            self._device.cache_bytes(),
            self._device.free_bytes(),
        )
        self.timer = EventTimer(self._device)

    def open(self, entry: str) -> Rotating:
        """Opens an entry such as "tensorrt-rtx", "ort-cuda-graph" or "torch-sdpa-on-cuda".

        What it computes is judged first: a wrong result has no latency.

        Raises:
            EngineUnavailableError: If it cannot run, or gives wrong results on the device.
        """
        graphs = entry.endswith(GRAPH_ENDING)
        kind = entry.removesuffix(GRAPH_ENDING).removesuffix(ON_DEVICE_ENDING)
        resident = self._resident(kind, graphs)
        try:
            self._require_right(resident)
        except AttnportError:
            resident.close()
            raise
        return Rotating(resident)

    def facts(self) -> dict[str, Number]:
        """What every measurement says beside its latency: rotation, and copies, apart."""
        return {
            "rotated_sets": self.rotation.sets,
            "rotated_bytes": self.rotation.sets * self.rotation.set_bytes,
            "cache_bytes": self.rotation.cache_bytes,
            "copies_in_us": round(copies_us(self._device, self._feeds, to_device=True), 3),
            "copies_out_us": round(copies_us(self._device, self._results, to_device=False), 3),
        }

    def _resident(self, kind: str, graphs: bool) -> Resident:
        sets, feeds = self.rotation.sets, self._feeds
        asked = engine_kind(kind)
        if asked.builds_plan:
            from attnport.engines.resident.plan import ResidentPlan
            from attnport.engines.trt_engine import TrtEngine

            engine = open_engine(self._bundle, kind)
            assert isinstance(engine, TrtEngine)
            return ResidentPlan(engine, feeds, sets, cuda_graphs=graphs)
        if asked.needs_module:
            from attnport.engines.resident.module import ResidentModule
            from attnport.engines.torch_engine import TorchEngine

            engine = open_engine(self._bundle, kind, module=self._module)
            assert isinstance(engine, TorchEngine)
            return ResidentModule(engine, self._device, feeds, sets, cuda_graphs=graphs)
        from attnport.engines.resident.session import ResidentSession

        return ResidentSession(self._bundle, asked, self._device, feeds, sets, cuda_graphs=graphs)

    def _require_right(self, resident: Resident) -> None:
        """Two sets, the second launched after the first: a graph or binding of the wrong set shows."""
        for which in sorted({0, resident.sets - 1}):
            resident.launch(which)
            judged = judge_outputs(
                resident.result(which), self._bundle.manifest.outputs, self._case
            )
            for name, found in judged.items():
                if found.status == "failed":
                    raise EngineUnavailableError(
                        f"its result on the device is wrong, {name}: {found.message}"
                    )


def _outputs_like(bundle: Bundle, case: Case) -> Mapping[str, np.ndarray]:
    from attnport.export.arrays import numpy_dtype

    return {
        spec.name: np.zeros(case.references[spec.name].shape, numpy_dtype(spec.dtype))
        for spec in bundle.manifest.outputs
        if spec.name in case.references
    }
