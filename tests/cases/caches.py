"""Attention over cached keys and values: T = past + new. Four query heads for two of the cache."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.cases.road import Args, Axes, Case, randn
from torch import nn

H, KV, DH = 4, 2, 16
D = H * DH


class Cached(nn.Module):
    """Returns the output and the longer cache; the mask is made from the two lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(D, D, bias=False)
        self.k, self.v = (nn.Linear(D, KV * DH, bias=False) for _ in range(2))
        self.o = nn.Linear(D, D, bias=False)

    def longer(
        self, x: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, H, DH).transpose(1, 2)
        k, v = (p(x).view(b, n, KV, DH).transpose(1, 2) for p in (self.k, self.v))
        return q, torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)

    def forward(
        self, x: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, n, _ = x.shape
        q, k, v = self.longer(x, past_key, past_value)
        rows = torch.arange(n)[:, None] + past_key.shape[2]
        visible = torch.arange(k.shape[2])[None, :] <= rows
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, n, D)), k, v


class CachedWithMask(Cached):
    """Likewise, with an additive mask (B,1,N,T) that the caller makes."""

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, n, _ = x.shape
        q, k, v = self.longer(x, past_key, past_value)
        wide = k.repeat_interleave(H // KV, 1)
        weights = (q @ wide.transpose(-2, -1) / math.sqrt(DH) + mask).softmax(-1)
        y = weights @ v.repeat_interleave(H // KV, 1)
        return self.o(y.transpose(1, 2).reshape(b, n, D)), k, v


def _cache(b: int, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    return randn(b, KV, p, DH, seed=6), randn(b, KV, p, DH, seed=7)


def _cached(b: int, n: int) -> Args:
    return (randn(b, n, D), *_cache(b, n + 1))


_X, _PAST = {0: "b", 1: "n"}, {0: "b", 2: "p"}
_AXES: Axes = {"b": (1, 2, 4), "n": (1, 6, 14), "p": (0, 7, 16)}


def _cached_with_mask(b: int, n: int) -> Args:
    """A past of n + 1, and a mask that hides by finfo.min what comes after each query."""
    past = n + 1
    hidden = torch.full((n, past + n), torch.finfo(torch.float16).min).triu(past + 1)
    return randn(b, n, D), hidden.expand(b, 1, n, past + n).clone(), *_cache(b, past)


CACHES = (
    Case("mask-from-lengths", Cached, _cached, (_X, _PAST, _PAST), _AXES),
    Case(
        "mask-beside",
        CachedWithMask,
        _cached_with_mask,
        (_X, {0: "b", 2: "n", 3: "t"}, _PAST, _PAST),
        {**_AXES, "t": "p + n"},
    ),
)
