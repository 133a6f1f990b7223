"""The float64 result of a module, and the errors that the parity bound is made of.

Inputs are drawn in the low dtype and then widened, and the weights likewise, so the reference has
the very numbers that an engine has. Three errors are measured against it: of the module in its own
dtype, of its SDPA form, and of the float64 module with every number perturbed by one rounding,
which tells how much the problem itself magnifies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from attnport.errors import ModuleError
from attnport.export.module_forms import (
    call_module,
    calls_sdpa,
    module_in_dtype,
    sdpa_form,
    to_numpy,
    to_torch,
    torch_dtype,
)
from attnport.export.records import OutputErrors, OutputReference, TensorSpec

_SOFTMAXES = {
    torch.ops.aten.softmax.int,
    torch.ops.aten._softmax.default,
    torch.ops.aten.special_softmax.default,
}


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
        self._low, self._dtype, self._outputs = module, dtype, outputs
        self._double = module_in_dtype(module, "float64")
        self._perturbed = _perturbed_module(self._double, dtype)
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
        generator = torch.Generator().manual_seed(seed)
        shaken = {
            name: _perturb(tensor, self._dtype, generator) if name in perturbed else tensor
            for name, tensor in wide.items()
        }
        softmax = _DeadRowsAreZero()
        safe = self._run(self._double, wide, softmax)
        # Where no softmax met a dead row, the module computes the same without our rule for them.
        plain = self._run(self._double, wide) if softmax.met_dead_row else safe
        eager = self._run(self._low, low, _DeadRowsAreZero())
        moved = self._run(self._perturbed, shaken, _DeadRowsAreZero())
        sdpa = self._run_sdpa(low)
        names = [spec.name for spec in self._outputs]
        found = [
            _reference(spec, plain[i], safe[i], eager[i], sdpa[i] if sdpa else None, moved[i])
            for i, spec in enumerate(self._outputs)
        ]
        return Outputs(dict(zip(names, safe, strict=True)), dict(zip(names, found, strict=True)))

    def _run_sdpa(self, low: Mapping[str, torch.Tensor]) -> list[np.ndarray] | None:
        """The SDPA form with torch's own choice of kernel; None where there is none."""
        if self._sdpa is None:
            self._sdpa = self._low if calls_sdpa(self._low, low) else False
        if self._sdpa is False:
            return None
        return self._run(self._sdpa, low, _DeadRowsAreZero(), kernels=None)

    def _run(
        self,
        module: torch.nn.Module,
        feeds: Mapping[str, torch.Tensor],
        softmax: _DeadRowsAreZero | None = None,
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


class _DeadRowsAreZero(TorchDispatchMode):
    """Makes a softmax give 0 where every score is -inf, as the specification says of dead rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch 2.13 annotates it not
        self.met_dead_row = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _SOFTMAXES:
            dead = (args[0] == -torch.inf).all(args[1], keepdim=True)
            if dead.any():
                self.met_dead_row = True
                result = result.masked_fill(dead, 0)
        return result


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _perturbed_module(double: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A copy of the float64 module, each weight moved by one rounding of the dtype."""
    moved = module_in_dtype(double, "float64")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.is_floating_point():
                parameter.copy_(_perturb(parameter, dtype, generator))
    return moved


def _perturb(tensor: torch.Tensor, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """x·(1 ± u), u half of the dtype's epsilon: the most that rounding moves a number by."""
    if not tensor.is_floating_point():
        return tensor
    u = torch.finfo(torch_dtype(dtype)).eps / 2
    signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=tensor.dtype) * 2 - 1
    return tensor * (1 + u * signs)


def _reference(
    spec: TensorSpec,
    plain: np.ndarray,
    safe: np.ndarray,
    eager: np.ndarray,
    sdpa: np.ndarray | None,
    moved: np.ndarray,
) -> OutputReference:
    finite = np.isfinite(safe)
    note = ""
    if not finite.all():
        note = (
            f"the module itself is not finite in float64 ({int((~finite).sum())} elements of "
            f"{spec.name}): that is its own fault, and nothing can be compared"
        )
    elif safe.size == 0:
        note = f"{spec.name} is empty at these sizes: there is nothing to compare"
    dead = ~np.isfinite(plain) & finite
    rows = int(dead.reshape(-1, dead.shape[-1]).any(-1).sum()) if dead.ndim else int(dead)
    magnitudes = np.abs(safe[finite]) if finite.any() else np.zeros(1)
    return OutputReference(
        eager=_errors(eager, safe),
        sdpa=_errors(sdpa, safe) if sdpa is not None else None,
        perturbed=_errors(moved, safe),
        rms=float(np.sqrt(np.mean(magnitudes.astype(np.float64) ** 2))),
        max_abs=float(magnitudes.max()),
        dead_rows=rows,
        note=note,
    )


def _errors(result: np.ndarray, reference: np.ndarray) -> OutputErrors | None:
    """None where the result is not finite, or has another shape."""
    if result.shape != reference.shape:
        return None
    wide = result.astype(np.float64)
    if not np.isfinite(wide).all() or not np.isfinite(reference).all():
        return None
    error = np.abs(wide - reference)
    if error.size == 0:
        return OutputErrors(max=0.0, mean=0.0)
    return OutputErrors(max=float(error.max()), mean=float(error.mean()))
