"""How much memory the float64 reference of a module needs at given sizes, before it is computed.

The module runs on torch's meta device, where tensors have shapes and no numbers, and every storage
that is alive is counted. One that asks for numbers cannot run there: it is run at small sizes, and
the need extrapolated.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from attnport.export.cases import CasePlan
from attnport.export.module_forms import call_module, to_torch
from attnport.export.records import TensorSpec
from attnport.export.watched import Watched

# The float64 module, and its copy that is perturbed; the module itself comes on top.
_DOUBLE_BYTES = 2 * 8
# Outputs in float64 of the three forms, while their errors are taken.
_OUTPUT_COPIES = 6


# What moving a result takes beside it: its noise, the moved result, and what is exact of it.
_NOISE_COPIES = 4


class MemoryNeed:
    """Estimates the peak of `Reference.compute`.

    Args:
        module: In the bundle's dtype.
        specs: The inputs.
    """

    def __init__(self, module: torch.nn.Module, specs: Sequence[TensorSpec]) -> None:
        self._module, self._specs = module, specs
        tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
        self.weight_bytes = sum(t.nbytes + _DOUBLE_BYTES * t.numel() for t in tensors.values())
        memo = {key: _on_meta(tensor) for key, tensor in tensors.items()}
        self._meta: torch.nn.Module | None = copy.deepcopy(module, memo)
        self._measured: dict[tuple[tuple[str, int], ...], int] = {}
        self._small: tuple[dict[str, int], int] | None = None

    def bytes_at(self, sizes: Mapping[str, int]) -> int:
        """Weights, activations and outputs at these sizes, in bytes."""
        key = tuple(sorted(sizes.items()))
        if key not in self._measured:
            self._measured[key] = self.weight_bytes + self._activation_bytes(dict(sizes))
        return self._measured[key]

    def _activation_bytes(self, sizes: dict[str, int]) -> int:
        if self._meta is not None:
            try:
                return _peak(self._meta, self._on_meta_feeds(sizes))
            except Exception:  # the module's own code: anything that asks for a number
                self._meta = None
        return self._extrapolated(sizes)

    def _on_meta_feeds(self, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
        return {
            spec.name: torch.empty(
                [dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape],
                dtype=_wide(spec),
                device="meta",
            )
            for spec in self._specs
        }

    def _extrapolated(self, sizes: dict[str, int]) -> int:
        """From the smallest sizes, as if the need grew with the square of every axis."""
        if self._small is None:
            least = {name: min(size, 2) for name, size in sizes.items()}
            plan = CasePlan("small", least, "visible", 0)
            feeds = {name: to_torch(array) for name, array in plan.inputs(self._specs).items()}
            self._small = (
                least,
                4 * _peak(self._module, feeds),
            )  # in float64: up to 4 times as wide
        least, peak = self._small
        growth = math.prod(
            max(1.0, size / max(least.get(n, 1), 1)) ** 2 for n, size in sizes.items()
        )
        return int(peak * growth)


def _peak(module: torch.nn.Module, feeds: Mapping[str, torch.Tensor]) -> int:
    counter = _LivePeak()
    with counter:
        results = call_module(module, feeds)
    given = sum(tensor.nbytes for tensor in feeds.values())
    return (
        counter.peak
        + _NOISE_COPIES * counter.largest
        + 2 * given
        + _OUTPUT_COPIES * sum(8 * r.numel() for r in results)
    )


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    empty = torch.empty(tensor.shape, dtype=dtype, device="meta")
    return torch.nn.Parameter(empty, False) if isinstance(tensor, torch.nn.Parameter) else empty


def _wide(spec: TensorSpec) -> torch.dtype:
    if "float" in spec.dtype:
        return torch.float64
    return torch.from_numpy(np.empty(0, spec.dtype)).dtype


class _LivePeak(Watched):
    """The most bytes of storages, made by the operators it sees, that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.largest = 0
        self._alive: dict[int, tuple[Any, int]] = {}

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = super().operator(func, args, kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # likewise
                self._alive[reference.cdata] = reference, storage.nbytes()
        self._alive = {k: v for k, v in self._alive.items() if not v[0].expired()}
        self.largest = max([self.largest, *(size for _, size in self._alive.values())])
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result
