"""What roundings do to a result: the float64 module with every number moved as rounding moves it.

Weights, inputs and whatever the module computes on the way are moved, each at random by up to
ROUNDINGS times the half-distance to the next number of the low dtype. What the dtype can hold
exactly stays, when it is computed: a mask of zeros and ones is not rounded. The error that comes of
it, divided by ROUNDINGS, stands for one rounding of each.

Why more than one: where a softmax is nearly one hot and two keys nearly tie, a result depends on a
rounding as on the toss of a coin. One rounding seldom shows it, five mostly do; elsewhere errors
grow in proportion, and the division undoes it. Measured against ONNX Runtime on saturated logits in
bfloat16, good engines came to 25 times a bound made of single roundings of weights and inputs
alone, and to 0.3 of one made so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from attnport.export.dead_rows import DeadRowsAreZero
from attnport.export.module_forms import module_in_dtype, torch_dtype

# The parity bound's own factor: it allows what so many roundings do.
ROUNDINGS = 5
# Products whose sums are added up in the low dtype itself. In float32 that is what engines do: K
# terms one after the other (ONNX Runtime's kernels take several columns at once, not several
# terms), each addition rounded at a sum that is half grown on average, so that it strays by √(K / 2)
# roundings of a typical term. Half precision is added up in float32.
SUMS_ITSELF = ("float32",)
_PRODUCTS = {
    torch.ops.aten.linear.default: (
        0,
        1,
        True,
    ),  # which arguments; whether the second is transposed
    torch.ops.aten.matmul.default: (0, 1, False),
    torch.ops.aten.mm.default: (0, 1, False),
    torch.ops.aten.bmm.default: (0, 1, False),
    torch.ops.aten.addmm.default: (1, 2, False),
    torch.ops.aten.baddbmm.default: (1, 2, False),
}
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default

# Draws for results that are not large. Of large ones, which hold so many rows that some tie in every
# draw, one is taken, and without moving what is computed on the way: that takes ten times as long.
DRAWS = 3
LARGE_RESULT = 1 << 18

_NOISE_LENGTH = 1_000_003  # prime, so that rows of a usual width never get the same noise


def rounded_module(double: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A copy of the float64 module, each weight moved by up to ROUNDINGS roundings of the dtype."""
    moved = module_in_dtype(double, "float64")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.is_floating_point():
                parameter.copy_(rounded_tensor(parameter, dtype, generator))
    return moved


def rounded_tensor(tensor: torch.Tensor, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """x·(1 + r), r uniform in ±ROUNDINGS·u, u half of the dtype's epsilon."""
    if not tensor.is_floating_point():
        return tensor
    drawn = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
    return tensor * (1 + _width(dtype) * (2 * drawn - 1))


class RoundingNoise(DeadRowsAreZero):
    """Moves what each operator computes, where the dtype cannot hold it exactly.

    Args:
        dtype: The low dtype.
        seed: Of the noise.
    """

    def __init__(self, dtype: str, seed: int) -> None:
        super().__init__()
        self._low, self._width = torch_dtype(dtype), _width(dtype)
        self._sums_itself = dtype in SUMS_ITSELF
        self._generator = torch.Generator().manual_seed(seed)

    def operator(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if func is _ATTENTION:
            # As its parts, so that its scores are moved, too.
            with self:
                return func.decompose(*args, **kwargs)
        result = super().operator(func, args, kwargs)
        if self._sums_itself and func in _PRODUCTS and result.dtype == torch.float64:
            result = result + self._strayed_sum(result, args, *_PRODUCTS[func])
        computed = all(returned.alias_info is None for returned in func._schema.returns)  # type: ignore[attr-defined]  # an OpOverload
        if computed and isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            return self._moved(result)
        return result

    def _moved(self, result: torch.Tensor) -> torch.Tensor:
        low = result.to(self._low)
        # A number beyond the dtype is no measured one but a sentinel (finfo(float64).min): moved,
        # those of one row would differ, and a row that is hidden whole would have a largest.
        inexact = (low.double() != result) & low.isfinite()
        noise = self._noise_like(result)
        return torch.where(inexact, result * (1 + self._width * noise), result)

    def _strayed_sum(
        self, result: torch.Tensor, args: Any, first: int, second: int, transposed: bool
    ) -> torch.Tensor:
        """How far the sum of each product strays: roundings of its terms, root sum square."""
        a, b = args[first], args[second]
        terms = (a * a) @ ((b * b).mT if transposed and b.dim() > 1 else b * b)
        count = max(a.shape[-1] / 2, 1.0)
        strayed: torch.Tensor = terms.sqrt() * self._noise_like(result)
        return self._width * math.sqrt(count) * strayed

    def _noise_like(self, result: torch.Tensor) -> torch.Tensor:
        """Uniform in ±1: a stretch of the noise, from a place that is drawn."""
        noise, count = _noise(), result.numel()
        start = int(torch.randint(0, _NOISE_LENGTH, (), generator=self._generator))
        if start + count > _NOISE_LENGTH:
            noise = noise.repeat(-(-(start + count) // _NOISE_LENGTH))
        return noise[start : start + count].view(result.shape)


@functools.cache
def _noise() -> torch.Tensor:
    drawn = torch.rand(
        _NOISE_LENGTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return 2 * drawn - 1


def _width(dtype: str) -> float:
    return ROUNDINGS * torch.finfo(torch_dtype(dtype)).eps / 2
