"""PyTorch on the same GPU and in the same dtype as an engine: how far it is from float64 there.

The bound is made of PyTorch's errors on a CPU, so that it is the same everywhere. What PyTorch errs by
on the device itself stands beside the engine's error, for who wants to compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnport.export.bundle import Bundle, Case
from attnport.validate.difference import difference
from attnport.validate.finding import Number

if TYPE_CHECKING:
    import torch


class DevicePeer:
    """The module on a device.

    Args:
        bundle: The bundle, for dtype and names.
        module: The module; it is copied.
        where: torch's name of the device.
    """

    def __init__(self, bundle: Bundle, module: torch.nn.Module, where: str = "cuda") -> None:
        from attnport.export.module_forms import module_in_dtype

        self._specs, self._where = bundle.manifest.outputs, where
        self._module = module_in_dtype(module, bundle.dtype).to(where)

    def errors(self, case: Case) -> Mapping[str, dict[str, Number]]:
        """For each output the largest and the mean error of PyTorch on the device.

        Args:
            case: The case; where PyTorch fails on it there is nothing to say.
        """
        from attnport.export.module_forms import call_module, to_numpy, to_torch

        feeds = {name: to_torch(array).to(self._where) for name, array in case.inputs.items()}
        try:
            results = [to_numpy(result) for result in call_module(self._module, feeds)]
        except RuntimeError:  # out of memory, or an operator that the device lacks in this dtype
            return {}
        return {
            spec.name: _numbers(found, case.references[spec.name])
            for spec, found in zip(self._specs, results, strict=True)
            if spec.name in case.references and found.shape == case.references[spec.name].shape
        }


def peer_of(bundle: Bundle, module: torch.nn.Module | None) -> DevicePeer | None:
    """The module on this machine's GPU; None where torch has none, or the module was not given."""
    if module is None:
        return None
    import torch

    return DevicePeer(bundle, module) if torch.cuda.is_available() else None


def _numbers(found: np.ndarray, reference: np.ndarray) -> dict[str, Number]:
    if not found.size:
        return {}
    apart = difference(found, reference)
    return {"pytorch_gpu_max": apart.max, "pytorch_gpu_mean": apart.mean}
