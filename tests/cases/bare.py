"""F.scaled_dot_product_attention alone: (B,H,N,Dh) in, the same out; Dh is 16, so TensorRT fuses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.cases.road import Args, Case, randn
from torch import nn


class Bare(nn.Module):
    """The function with fixed options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **self.options)


def heads(
    b: int, n: int, t: int, *, h: int = 3, kv: int = 3, d: int = 16, dv: int = 16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return randn(b, h, n, d), randn(b, kv, t, d, seed=2), randn(b, kv, t, dv, seed=3)


_ONE = ({0: "b", 2: "n"},) * 3
_TWO = ({0: "b", 2: "n"}, {0: "b", 2: "t"}, {0: "b", 2: "t"})
_ONE_AXES = {"b": (1, 2, 4), "n": (1, 6, 14)}
_TWO_AXES = _ONE_AXES | {"t": (1, 9, 20)}
_MASK = {0: "b", 2: "n", 3: "n"}


def _dead(b: int, n: int) -> torch.Tensor:
    """Every key is hidden from the first query of the first head, and one from the others."""
    mask = torch.ones(b, 3, n, n, dtype=torch.bool)
    mask[0, 0, 0] = False
    if n > 2:
        mask[:, 1, :, 1] = False
    return mask


def _lowest(b: int, n: int) -> torch.Tensor:
    """An additive mask that is finfo(float16).min where something is hidden, all of a row once."""
    return torch.zeros(b, 3, n, n).masked_fill(~_dead(b, n), torch.finfo(torch.float16).min)


def _keys(b: int, n: int) -> torch.Tensor:
    """(1,1,1,N): the same keys are hidden from all; legal broadcast, and a special case to many."""
    mask = torch.zeros(1, 1, 1, n)
    mask[..., 1::3] = -1e4
    return mask


def _masked(name: str, mask: Any, shape: dict[int, str]) -> Case:
    def at(b: int, n: int) -> Args:
        return (*heads(b, n, n), mask(b, n))

    return Case(name, Bare, at, (*_ONE, shape), _ONE_AXES)


BARE = (
    Case(
        "causal-fewer-queries",
        lambda: Bare(is_causal=True),
        lambda b, n: heads(b, n, n + 5),
        _TWO,
        _TWO_AXES,
    ),
    Case(
        "causal-more-queries",
        lambda: Bare(is_causal=True),
        lambda b, n: heads(b, n + 3, n),
        _TWO,
        _TWO_AXES,
    ),
    Case("causal", lambda: Bare(is_causal=True), lambda b, n: heads(b, n, n), _ONE, _ONE_AXES),
    _masked("bool-mask-dead-row", _dead, _MASK),
    _masked("lowest-half-mask", _lowest, _MASK),
    _masked("mask-of-keys", _keys, {3: "n"}),
    Case(
        "grouped-query",
        lambda: Bare(enable_gqa=True),
        lambda b, n: heads(b, n, n, h=6, kv=2),
        _ONE,
        _ONE_AXES,
    ),
    Case(
        "grouped-query-causal-other-length",
        lambda: Bare(enable_gqa=True, is_causal=True),
        lambda b, n: heads(b, n, n + 4, h=4, kv=2),
        _TWO,
        _TWO_AXES,
    ),
    Case(
        "three-dimensions",
        Bare,
        lambda b, n: (randn(b, n, 16), randn(b, n, 16, seed=2), randn(b, n, 16, seed=3)),
        ({0: "b", 1: "n"},) * 3,
        _ONE_AXES,
    ),
    Case(
        "scale-of-its-own",
        lambda: Bare(scale=0.29),
        lambda b, n: (randn(b, n, 16), randn(b, n + 2, 16, seed=2), randn(b, n + 2, 16, seed=3)),
        ({0: "b", 1: "n"}, {0: "b", 1: "t"}, {0: "b", 1: "t"}),
        _TWO_AXES,
    ),
    Case("wider-values", Bare, lambda b, n: heads(b, n, n, dv=24), _ONE, _ONE_AXES),
    Case(
        "head-size-512",
        Bare,
        lambda b, n: heads(b, n, n, h=1, kv=1, d=512, dv=512),
        _ONE,
        _ONE_AXES,
    ),
)
