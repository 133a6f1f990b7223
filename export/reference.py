"""The float64 result of a module, and the errors that the parity bound is made of.

Inputs are drawn in the low dtype and then widened, and the weights likewise, so the reference has
the very numbers that an engine has. Three errors are measured against it: of the module in its own
dtype, of its SDPA form, and of the float64 module with every number moved as rounding moves it
(`rounding`), which tells how much the problem itself magnifies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnport.axes import Axis
from attnport.errors import ModuleError
from attnport.export.case_properties import possible_properties
from attnport.export.dead_rows import DeadRowsAreZero
from attnport.export.determinism import require_deterministic
from attnport.export.module_forms import (
    call_module,
    calls_sdpa,
    module_in_dtype,
    sdpa_form,
    to_numpy,
    to_torch,
    torch_dtype,
)
from attnport.export.records import OutputReference, TensorSpec
from attnport.export.reference_errors import known_of
from attnport.export.rounding import (
    DRAWS,
    LARGE_RESULT,
    RoundingNoise,
    rounded_module,
    rounded_tensor,
)

# Of so many numbers dropout keeps all in both of two runs once in 10^8, even at p = 0.01: smaller
# inputs, as the case of the smallest sizes has, may well come out alike.
_ENOUGH_NUMBERS = 1024


@dataclass(frozen=True)
class Outputs:
    """The reference of one case: the float64 arrays, and what is known of each."""

    arrays: dict[str, np.ndarray]
    references: dict[str, OutputReference]


class Reference:
    """Computes references of one module.

    Args:
        module: In the bundle's dtype, in eval mode.
        dtype: The bundle's dtype.
        outputs: The outputs, in order.
    """

    def __init__(self, module: torch.nn.Module, dtype: str, outputs: Sequence[TensorSpec]) -> None:
        self._deterministic = False
        self._low, self._dtype, self._outputs = module, dtype, outputs
        self._double = module_in_dtype(module, "float64")
        self._rounded = rounded_module(self._double, dtype)
        # False once it is known that there is none.
        self._sdpa: torch.nn.Module | Literal[False] | None = sdpa_form(module)

    def compute(
        self, inputs: Mapping[str, np.ndarray], perturbed: Sequence[str], seed: int
    ) -> Outputs:
        """The reference for one set of inputs.

        Args:
            inputs: In the bundle's dtypes.
            perturbed: The inputs that stand for measured numbers, and not for masks or ids.
            seed: Of the perturbation's signs.

        Raises:
            ModuleError: If the module itself fails, is not finite in float64 anywhere but on dead
                rows, or gives other outputs than were exported.
        """
        low = {name: to_torch(array) for name, array in inputs.items()}
        wide = {name: _widened(tensor) for name, tensor in low.items()}
        self._require_deterministic(wide)
        softmax = DeadRowsAreZero()
        safe = self._run(self._double, wide, softmax)
        # Where no softmax met a dead row, the module computes the same without our rule for them.
        plain = self._run(self._double, wide) if softmax.met_dead_row else safe
        moved = self._run_rounded(
            wide, perturbed, seed, large=sum(a.size for a in safe) > LARGE_RESULT
        )
        eager, fault = self._run_eager(low)
        sdpa = self._run_sdpa(low) if eager else None
        names = [spec.name for spec in self._outputs]
        found = []
        for i, spec in enumerate(self._outputs):
            low_dtype = (eager[i] if eager else None, sdpa[i] if sdpa else None)
            reference = known_of(spec, plain[i], safe[i], *low_dtype, [m[i] for m in moved])
            found.append(reference.model_copy(update={"note": reference.note or fault}))
        return Outputs(dict(zip(names, safe, strict=True)), dict(zip(names, found, strict=True)))

    def properties(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        specs: Sequence[TensorSpec],
        axes: Mapping[str, Axis],
        sizes: Mapping[str, int],
        seed: int,
    ) -> tuple[str, ...]:
        """Which of `case_properties` the float64 module has on these inputs.

        One holds where the difference is nearer to float64's rounding than to the dtype's: below
        the geometric mean of the two, at the outputs' magnitude.

        Args:
            inputs: In the bundle's dtypes.
            outputs: What `compute` gave for them.
            specs: The inputs' forms.
            axes: The axes.
            sizes: The size of each axis.
            seed: Of what the properties draw.
        """
        limit = float(
            np.sqrt(np.finfo(np.float64).eps * torch.finfo(torch_dtype(self._dtype)).eps)
        )
        held = []
        for one in possible_properties(specs, self._outputs, sizes, axes):
            feeds = {
                name: _widened(to_torch(array))
                for name, array in one.changed(inputs, specs, seed).items()
            }
            try:
                results = self._run(self._double, feeds, DeadRowsAreZero())
            except ModuleError:
                continue
            names = [spec.name for spec in self._outputs]
            found = one.compared(dict(zip(names, results, strict=True)), self._outputs)
            wanted = one.expected(outputs, self._outputs, seed)
            if all(_near(found[name], wanted[name], limit) for name in wanted):
                held.append(str(one))
        return tuple(held)

    def _require_deterministic(self, wide: Mapping[str, torch.Tensor]) -> None:
        """Until it was asked at inputs so large that dropout has hardly left all as it was."""
        if self._deterministic:
            return
        self._run(self._double, wide)  # a module that fails says so in its own words
        with sdpa_kernel(SDPBackend.MATH):
            require_deterministic(self._double, wide)
        self._deterministic = sum(map(torch.Tensor.numel, wide.values())) >= _ENOUGH_NUMBERS

    def _run_rounded(
        self, wide: Mapping[str, torch.Tensor], perturbed: Sequence[str], seed: int, *, large: bool
    ) -> list[list[np.ndarray]]:
        """The float64 module with every number moved, a few times over."""
        draws = []
        for draw in range(1 if large else DRAWS):
            generator = torch.Generator().manual_seed(seed + draw)
            moved = {
                name: rounded_tensor(tensor, self._dtype, generator)
                if name in perturbed
                else tensor
                for name, tensor in wide.items()
            }
            noise = DeadRowsAreZero() if large else RoundingNoise(self._dtype, seed + draw)
            draws.append(self._run(self._rounded, moved, noise))
        return draws

    def _run_eager(self, low: Mapping[str, torch.Tensor]) -> tuple[list[np.ndarray] | None, str]:
        """The module in its own dtype; where it fails and float64 did not, None and the reason."""
        try:
            return self._run(self._low, low, DeadRowsAreZero()), ""
        except ModuleError as err:
            cause = str(err.__cause__ or err).splitlines()[0]
            return None, (
                f"the module itself fails in {self._dtype} ({cause}), and works in float64: that "
                "is the module's own fault, not the engine's; mend it, or export another dtype"
            )

    def _run_sdpa(self, low: Mapping[str, torch.Tensor]) -> list[np.ndarray] | None:
        """The SDPA form with torch's own choice of kernel; None where there is none."""
        if self._sdpa is None:
            self._sdpa = self._low if calls_sdpa(self._low, low) else False
        if self._sdpa is False:
            return None
        return self._run(self._sdpa, low, DeadRowsAreZero(), kernels=None)

    def _run(
        self,
        module: torch.nn.Module,
        feeds: Mapping[str, torch.Tensor],
        softmax: DeadRowsAreZero | None = None,
        *,
        kernels: SDPBackend | None = SDPBackend.MATH,
    ) -> list[np.ndarray]:
        def run() -> list[torch.Tensor]:
            with softmax or contextlib.nullcontext():
                return call_module(module, feeds)

        try:
            if kernels is None:
                results = run()
            else:
                with sdpa_kernel(kernels):
                    results = run()
        except ModuleError:
            raise
        except Exception as err:
            sizes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in feeds.items())
            raise ModuleError(
                f"the module itself fails on {sizes} ({err}): narrow the axes to sizes it takes"
            ) from err
        if len(results) != len(self._outputs):
            raise ModuleError(
                f"the module gave {len(results)} outputs, and {len(self._outputs)} were exported: "
                "what it returns must not depend on its inputs"
            )
        return [to_numpy(result) for result in results]


def _near(found: np.ndarray, wanted: np.ndarray, limit: float) -> bool:
    """Whether two float64 results agree, within a part of the largest magnitude."""
    if found.shape != wanted.shape or not wanted.size:
        return False
    with np.errstate(invalid="ignore"):
        difference = np.abs(found.astype(np.float64) - wanted)
    return bool(difference.max() <= limit * np.abs(wanted).max())


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
