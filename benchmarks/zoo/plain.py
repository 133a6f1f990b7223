"""Attention as people write it by hand: one idea each, D = 64, H = 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from benchmarks.zoo.architecture import Architecture, B, D, H, S, activation, seeded
from benchmarks.zoo.limits import SOFTCAP
from torch import nn

_X = {0: "batch", 1: "seq"}
_DH = D // H
Score = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Separate(nn.Module):
    """Three projections, four heads, one way of making the context from them."""

    def __init__(self, context: Score, *, bias: bool = True, kv_heads: int = H) -> None:
        super().__init__()
        self.q = nn.Linear(D, D, bias=bias)
        self.k = nn.Linear(D, kv_heads * _DH, bias=bias)
        self.v = nn.Linear(D, kv_heads * _DH, bias=bias)
        self.o = nn.Linear(D, D, bias=bias)
        self.context = context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (
            layer(x).view(b, n, -1, _DH).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        y: torch.Tensor = self.o(self.context(q, k, v).transpose(1, 2).reshape(b, n, D))
        return y  # (B,N,D)


class Packed(nn.Module):
    """One projection, split into (B,H,N,Dh) three times."""

    def __init__(self, context: Score) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.context = context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, H, _DH).permute(2, 0, 3, 1, 4).unbind(0)
        y: torch.Tensor = self.o(self.context(q, k, v).transpose(1, 2).reshape(b, n, D))
        return y


class Flat(Separate):
    """Heads folded into the batch: three-dimensional products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (
            layer(x).view(b, n, H, _DH).transpose(1, 2).reshape(b * H, n, _DH)
            for layer in (self.q, self.k, self.v)
        )
        weights = torch.bmm(q * _DH**-0.5, k.transpose(1, 2)).softmax(-1)
        c = torch.bmm(weights, v).view(b, H, n, _DH).transpose(1, 2).reshape(b, n, D)
        y: torch.Tensor = self.o(c)
        return y


class TrilBuffer(Separate):
    """A constant triangle, cut to the sequence, as in most textbooks."""

    def __init__(self) -> None:
        super().__init__(sdpa, bias=False)
        self.tril: torch.Tensor
        self.register_buffer("tril", torch.tril(torch.ones(64, 64)))
        self.context = self.masked

    def masked(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n = q.shape[2]
        scores = q @ k.transpose(-2, -1) * _DH**-0.5
        hidden = self.tril[:n, :n] == 0
        c: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return c


class WithMask(nn.Module):
    """Separate projections and a mask input, hidden where it is 0."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.inner = Separate(sdpa, bias=False)
        self.fill = fill

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        def context(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = q @ k.transpose(-2, -1) / math.sqrt(_DH)
            return scores.masked_fill(mask == 0, self.fill).softmax(-1) @ v

        b, n, _ = x.shape
        layers = (self.inner.q, self.inner.k, self.inner.v)
        q, k, v = (layer(x).view(b, n, H, _DH).transpose(1, 2) for layer in layers)
        y: torch.Tensor = self.inner.o(context(q, k, v).transpose(1, 2).reshape(b, n, D))
        return y


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(_DH)).softmax(-1) @ v


def both_scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    root = _DH**-0.25
    c: torch.Tensor = ((q * root) @ (k * root).transpose(-2, -1)).softmax(-1) @ v
    return c


def in_float(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q * _DH**-0.5) @ k.transpose(-2, -1)
    c: torch.Tensor = scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v
    return c


def einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(_DH**-0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def nan_guarded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.transpose(-2, -1) * _DH**-0.5).softmax(-1)
    return torch.nan_to_num(weights) @ v


def softcapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) * _DH**-0.5
    return (2.0 * torch.tanh(scores / 2.0)).softmax(-1) @ v


def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    places = torch.arange(q.shape[2])
    slopes = 2.0 ** -torch.arange(1, H + 1)
    bias = -(places[:, None] - places[None, :]).abs() * slopes[:, None, None]
    c: torch.Tensor = (q @ k.transpose(-2, -1) * _DH**-0.5 + bias.to(q.dtype)).softmax(-1) @ v
    return c


def windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    places = torch.arange(q.shape[2])
    near = (places[:, None] - places[None, :]).abs() < 6
    return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True)


def repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    times = H // k.shape[1]
    return by_hand(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def expanded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    def wide(t: torch.Tensor) -> torch.Tensor:
        b, kv_heads, n, d = t.shape
        return t[:, :, None].expand(b, kv_heads, H // kv_heads, n, d).reshape(b, H, n, d)

    return by_hand(q, wide(k), wide(v))


def _plain(name: str, make: Callable[[], nn.Module], **more: Any) -> Architecture:
    why = "query, key and value project the input"
    fixed: dict[str, Any] = {"example": lambda: (activation(B, S, D),), "dynamic_shapes": (_X,)}
    return Architecture(
        name=name,
        family="by hand",
        make=seeded(make),
        attentions=1,
        groups=1,
        why=why,
        **(fixed | more),
    )


def _masked(name: str, fill: float, dead_rows: int) -> Architecture:
    return _plain(
        name,
        lambda: WithMask(fill),
        example=lambda: (activation(B, S, D), torch.ones(B, 1, S, S)),
        dynamic_shapes=(_X, {0: "batch", 2: "seq", 3: "seq"}),
        dead_rows=dead_rows,
    )


PLAIN = (
    _plain("separate-sdpa", lambda: Separate(sdpa)),
    _plain("separate-causal", lambda: Separate(causal, bias=False), causal=1),
    _plain("separate-by-hand", lambda: Separate(by_hand)),
    _plain("packed-sdpa", lambda: Packed(sdpa)),
    _plain("packed-by-hand", lambda: Packed(by_hand)),
    _plain("both-scaled", lambda: Separate(both_scaled)),
    _plain("softmax-in-float", lambda: Separate(in_float)),
    _plain("einsum", lambda: Separate(einsum)),
    _plain("nan-guarded", lambda: Separate(nan_guarded)),
    _plain("heads-in-batch", lambda: Flat(by_hand)),
    _plain("tril-buffer", TrilBuffer, causal=1),
    _masked("mask-minus-infinity", float("-inf"), 1),
    _masked("mask-minus-10000", -1e4, 0),
    _plain("alibi", lambda: Separate(alibi)),
    _plain("window", lambda: Separate(windowed)),
    _plain(
        "softcap",
        lambda: Separate(softcapped),
        unfusable={SOFTCAP: 1},
    ),
    _plain("grouped-sdpa", lambda: Separate(grouped, kv_heads=2), causal=1),
    _plain("grouped-repeat", lambda: Separate(repeated, kv_heads=2)),
    _plain("grouped-expand", lambda: Separate(expanded, kv_heads=2)),
    _plain("multi-query", lambda: Separate(repeated, kv_heads=1)),
)
