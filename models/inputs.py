"""Inputs as text, `NAME:DTYPE[dim,dim,…]=role`, and example tensors made from them.

A dimension is a number or the name of an axis: `src:float32[batch,seq,64]`,
`mask:bool[batch,1,1,seq]=mask`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnport.errors import UsageError
from attnport.models.spec import DynamicShapes

# What attnport.export.records calls Dtype and Role; this room imports no other.
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
ROLES = ("activation", "token_ids", "mask", "bias", "lengths", "positions", "cache", "write_at")

_FORM = re.compile(r"(?P<name>\w+):(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?:=(?P<role>\w+))?")


@dataclass(frozen=True)
class InputSpec:
    """One argument of forward; a dimension is a size or the name of an axis."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    role: str | None = None

    def symbols(self) -> dict[int, str]:
        """The axis of each symbolic dimension."""
        return {i: dim for i, dim in enumerate(self.shape) if isinstance(dim, str)}

    def example(self, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
        """A tensor of this shape: normal floats, whole numbers 0 and 1, or True and False.

        The first key of a bool is True, so that a mask of visible keys hides no row completely.
        Integers stay below 2 because that is a valid token, position and length for any model.
        """
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in self.shape]
        if self.dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(self.dtype)
        values = torch.randint(0, 2, shape, generator=generator).to(self.dtype)
        if self.dtype == torch.bool:
            values[..., :1] = True
        return values


def parse_input(text: str) -> InputSpec:
    """Reads one input.

    Raises:
        UsageError: If it is not of the form, or has an unknown dtype or role.

    >>> parse_input("src:float32[batch,seq,64]").shape
    ('batch', 'seq', 64)
    """
    match = _FORM.fullmatch("".join(text.split()))
    if match is None:
        raise UsageError(
            f"input {text!r} is not of the form NAME:DTYPE[dim,dim,…], "
            "such as src:float32[batch,seq,64] or mask:bool[batch,1,1,seq]=mask"
        )
    if match["dtype"] not in DTYPES:
        raise UsageError(
            f"input {text!r} has the unknown dtype {match['dtype']!r}: "
            f"give one of {', '.join(DTYPES)}"
        )
    if match["role"] is not None and match["role"] not in ROLES:
        raise UsageError(
            f"input {text!r} has the unknown role {match['role']!r}: give one of {', '.join(ROLES)}"
        )
    dims = tuple(_parse_dim(dim, text) for dim in match["dims"].split(",") if match["dims"])
    return InputSpec(match["name"], DTYPES[match["dtype"]], dims, match["role"])


def example_args(inputs: Sequence[InputSpec], sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
    """One example for each input, the same values each time.

    Raises:
        UsageError: If an axis has no size.
    """
    missing = {name for spec in inputs for name in spec.symbols().values()} - set(sizes)
    if missing:
        raise UsageError(
            f"no size was given for {', '.join(sorted(missing))}: give one for each axis, "
            f"such as {{{min(missing)!r}: 2}}"
        )
    generator = torch.Generator().manual_seed(0)
    return tuple(spec.example(sizes, generator) for spec in inputs)


def dynamic_shapes_of(inputs: Sequence[InputSpec]) -> DynamicShapes:
    """The symbolic dimensions of the inputs, as torch.export takes them."""
    return tuple(spec.symbols() or None for spec in inputs)


def roles_of(inputs: Sequence[InputSpec]) -> dict[str, str]:
    """The roles that were given, by input."""
    return {spec.name: spec.role for spec in inputs if spec.role is not None}


def _parse_dim(dim: str, text: str) -> int | str:
    if dim.isdecimal():
        return int(dim)
    if dim.isidentifier():
        return dim
    raise UsageError(
        f"input {text!r} has the dimension {dim!r}: give a number or the name of an axis"
    )
