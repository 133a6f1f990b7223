"""What the parity bound is made of: perturbed numbers, and errors against the float64 result."""

from __future__ import annotations

import numpy as np
import torch

from attnport.export.module_forms import module_in_dtype, torch_dtype
from attnport.export.records import OutputErrors, OutputReference, TensorSpec


def perturbed_module(double: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A copy of the float64 module, each weight moved by one rounding of the dtype."""
    moved = module_in_dtype(double, "float64")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.is_floating_point():
                parameter.copy_(perturbed_tensor(parameter, dtype, generator))
    return moved


def perturbed_tensor(tensor: torch.Tensor, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """x·(1 ± u), u half of the dtype's epsilon: the most that rounding moves a number by."""
    if not tensor.is_floating_point():
        return tensor
    u = torch.finfo(torch_dtype(dtype)).eps / 2
    signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=tensor.dtype) * 2 - 1
    return tensor * (1 + u * signs)


def known_of(
    spec: TensorSpec,
    plain: np.ndarray,
    safe: np.ndarray,
    eager: np.ndarray | None,
    sdpa: np.ndarray | None,
    moved: np.ndarray,
) -> OutputReference:
    """What is known of one output.

    Args:
        spec: The output.
        plain: The float64 module as it is.
        safe: The same with dead rows as the specification has them: the reference.
        eager: The module in its own dtype; None where it failed.
        sdpa: Its SDPA form in that dtype; None where there is none.
        moved: The float64 module with every number perturbed by one rounding.
    """
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
        eager=_errors(eager, safe) if eager is not None else None,
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
