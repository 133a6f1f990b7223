"""Makes the cases that a bundle does not carry: the generated ones, and the user's own.

They are computed one after the other and written to disk before any engine runs, so that the
float64 module and an engine are never in memory together.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.feeds import check_feeds
from attnport.errors import InputError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.case_file import write_case
from attnport.export.case_sizes import largest_sizes
from attnport.export.cases import CasePlan, largest_plan, plan_cases, plan_further_cases
from attnport.export.records import CaseRecord
from attnport.validate.bound import incomparable, uninformative
from attnport.validate.extent import Extent, OwnCases
from attnport.validate.stored_case import StoredCase

if TYPE_CHECKING:
    import torch

    from attnport.export.memory_need import MemoryNeed
    from attnport.export.reference import Reference

# Where the float64 module is asked which properties it has: ordinary numbers, a mask that is not
# the usual one, and a softmax that is nearly one hot.
_WITH_PROPERTIES = ("low-primes", "mask-block", "numbers-large")
# An engine holds its weights, often a second time in float32, and low-precision activations: less
# than the float64 reference, whose need is what the budget is compared with.


class Made:
    """What was made.

    Attributes:
        cases: Cases on disk.
        left_out: For each that was not made the reason.
    """

    def __init__(self) -> None:
        self.cases: list[StoredCase] = []
        self.left_out: dict[str, str] = {}


def make_cases(
    bundle: Bundle,
    module: torch.nn.Module,
    extent: Extent,
    folder: Path,
    tell: Callable[[str], object] = lambda name: None,
) -> Made:
    """Makes every case that an extent asks for beyond the bundle's.

    Args:
        bundle: The bundle.
        module: The module it was exported from.
        extent: What is asked for.
        folder: An empty one, for the files.
        tell: Called with the name of each case.

    Raises:
        ModuleError: If the module itself fails, or is not deterministic.
        InputError: If a case of the user's own does not fit the bundle's inputs.
        UsageError: If the budget does not hold the module's weights, or two cases bear one name.
    """
    from attnport.export.memory_need import MemoryNeed
    from attnport.export.module_forms import module_in_dtype
    from attnport.export.reference import Reference

    low = module_in_dtype(module, bundle.dtype)
    need = MemoryNeed(low, bundle.manifest.inputs)
    _require_room(need, extent)
    maker = _Maker(
        bundle, Reference(low, bundle.dtype, bundle.manifest.outputs), need, extent, folder, tell
    )
    if extent.further:
        maker.generated()
    for own in extent.own:
        maker.own(own)
    return maker.made


def _require_room(need: MemoryNeed, extent: Extent) -> None:
    if need.weight_bytes > extent.memory_bytes:
        raise UsageError(
            f"the module's weights and their float64 copies take {_mib(need.weight_bytes)}, more "
            f"than the budget of {_mib(extent.memory_bytes)}: give a larger memory budget"
        )


class _Maker:
    def __init__(
        self,
        bundle: Bundle,
        reference: Reference,
        need: MemoryNeed,
        extent: Extent,
        folder: Path,
        tell: Callable[[str], object],
    ) -> None:
        self._bundle, self._reference, self._need = bundle, reference, need
        self._extent, self._folder, self._tell = extent, folder, tell
        self._names = {record.name for record in bundle.manifest.cases}
        self.made = Made()

    def generated(self) -> None:
        """The further cases, those of the first that the bundle left out, and the largest."""
        specs, axes, seed = self._bundle.manifest.inputs, self._bundle.axes, self._extent.seed
        plans = [*plan_cases(specs, axes, seed=seed), *plan_further_cases(specs, axes, seed=seed)]
        for plan in plans:
            if plan.name not in self._names and self._fits(plan.name, plan.sizes):
                self._write(plan, plan.inputs(specs), plan.name in _WITH_PROPERTIES)
        self._growing()
        if any(self._need.bytes_at(plan.sizes) > self._extent.memory_bytes for plan in plans):
            sizes = largest_sizes(axes, self._is_small_enough)
            if sizes is not None:
                plan = largest_plan(specs, sizes, seed=seed)
                self._write(plan, plan.inputs(specs), False)

    def _growing(self) -> None:
        """Sizes at which ordinary numbers prove nothing once more, with tokens that grow.

        A causal mask leaves later tokens an average of many, which is small, while errors are those
        of the first tokens: in bfloat16, with 8 bits, long sequences are then uninformative.
        """
        written = [case.record for case in self.made.cases]
        for record in (*self._bundle.manifest.cases, *written):
            name = f"{record.name}-growing"
            if record.magnitude != "normal" or not self._tells_nothing(record):
                continue
            sizes, seed = dict(record.sizes), zlib.crc32(name.encode())
            plan = CasePlan(name, sizes, record.mask, seed, "growing", record.fill)
            if self._fits(name, sizes):
                self._write(plan, plan.inputs(self._bundle.manifest.inputs), False)

    def _tells_nothing(self, record: CaseRecord) -> bool:
        dtypes = {spec.name: spec.dtype for spec in self._bundle.manifest.outputs}
        known = [(one, dtypes[name]) for name, one in record.references.items() if name in dtypes]
        # Zero everywhere is what the mask made of it, whatever the numbers are.
        return bool(known) and all(
            one.max_abs > 0 and not incomparable(one) and uninformative(one, dtype)
            for one, dtype in known
        )

    def own(self, own: OwnCases) -> None:
        """The user's cases from one origin."""
        specs, axes = self._bundle.manifest.inputs, self._bundle.axes
        for given, inputs in own.make():
            name = f"own-{re.sub(r'[^A-Za-z0-9_.-]+', '-', given)}"
            if name in self._names:
                raise UsageError(
                    f"{own.origin} gives two cases the name {given!r}: name each once"
                )
            try:
                checked = check_feeds(inputs, specs, axes)
            except InputError as err:
                raise InputError(f"case {given!r} of {own.origin}: {err}") from err
            sizes = _sizes(self._bundle, checked)
            plan = CasePlan(name, sizes, "own", zlib.crc32(name.encode()), magnitude="own")
            if self._fits(name, sizes):
                self._write(plan, checked, True)

    def _fits(self, name: str, sizes: dict[str, int]) -> bool:
        need = self._need.bytes_at(sizes)
        if need <= self._extent.memory_bytes:
            return True
        self.made.left_out[name] = (
            f"left out: it needs about {_mib(need)}, and the memory budget is "
            f"{_mib(self._extent.memory_bytes)}"
        )
        return False

    def _is_small_enough(self, sizes: dict[str, int]) -> bool:
        return self._need.bytes_at(sizes) <= self._extent.memory_bytes

    def _write(
        self, plan: CasePlan, inputs: Mapping[str, np.ndarray], with_properties: bool
    ) -> None:
        self._tell(plan.name)
        self._names.add(plan.name)
        record = write_case(
            self._folder,
            f"{plan.name}.safetensors",
            plan,
            inputs,
            self._reference,
            self._bundle.manifest.inputs,
            self._bundle.axes,
            with_properties=with_properties,
        )
        self.made.cases.append(StoredCase(record, self._folder))


def _sizes(bundle: Bundle, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {
        dim: inputs[spec.name].shape[at]
        for spec in bundle.manifest.inputs
        for at, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    }


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB" if size > 100 << 20 else f"{size / (1 << 20):.2g} MiB"
