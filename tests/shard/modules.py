"""Attention with something along the way that belongs to a head, and must be split with it.

B batch, N tokens, D width, H heads, G key/value heads, Dh head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, SIZE = 32, 4, 8


class Plain(nn.Module):
    """Hooks for whatever comes between the projections and the output."""

    def __init__(self, kv_heads: int = HEADS, heads: int = HEADS, *, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q = nn.Linear(WIDTH, heads * SIZE, bias=bias)
        self.k = nn.Linear(WIDTH, kv_heads * SIZE, bias=bias)
        self.v = nn.Linear(WIDTH, kv_heads * SIZE, bias=bias)
        self.o = nn.Linear(heads * SIZE, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, None)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (part(x).view(b, n, -1, SIZE) for part in (self.q, self.k, self.v))
        q, k = self.queries(q), self.keys(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = self.scores(q @ k.transpose(-2, -1) / math.sqrt(SIZE))
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        context = scores.softmax(-1) @ v
        return self.output(x, context)

    def queries(self, q: Tensor) -> Tensor:
        return q

    def keys(self, k: Tensor) -> Tensor:
        return k

    def scores(self, scores: Tensor) -> Tensor:
        return scores

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        result: Tensor = self.o(context.transpose(1, 2).flatten(2))
        return result


class Slopes(Plain):
    """ALiBi: a slope for each head, times the distance (Press et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, HEADS + 1).float())

    def scores(self, scores: Tensor) -> Tensor:
        at = torch.arange(scores.size(-1), device=scores.device)
        distance = (at[None, :] - at[:, None]).abs().to(scores.dtype)
        return scores + self.slopes.view(1, HEADS, 1, 1) * -distance  # type: ignore[operator]


class RelativeTable(Plain):
    """T5's relative positions: a table with a column for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, HEADS)

    def scores(self, scores: Tensor) -> Tensor:
        at = torch.arange(scores.size(-1), device=scores.device)
        index = (at[None, :] - at[:, None]).clamp(-4, 4) + 4
        bias: Tensor = self.table(index).permute(2, 0, 1)[None]
        return scores + bias


class NormalisedHeads(Plain):
    """Queries and keys normalised within each head, with weights of each head's own."""

    def __init__(self) -> None:
        super().__init__()
        self.q_weight = nn.Parameter(torch.rand(HEADS, SIZE) + 0.5)
        self.k_weight = nn.Parameter(torch.rand(SIZE) + 0.5)

    def queries(self, q: Tensor) -> Tensor:
        return functional.rms_norm(q, (SIZE,)) * self.q_weight

    def keys(self, k: Tensor) -> Tensor:
        return functional.layer_norm(k, (SIZE,), self.k_weight)


class NormalisedWidth(Plain):
    """Queries normalised over all heads together: no rank alone can."""

    def queries(self, q: Tensor) -> Tensor:
        return functional.rms_norm(q.flatten(2), (HEADS * SIZE,)).view(q.shape)


class Rotary(Plain):
    """Rotary positions (Su et al. 2021) in the halves form, for 4 query and 2 key/value heads."""

    def __init__(self) -> None:
        super().__init__(kv_heads=2)

    def queries(self, q: Tensor) -> Tensor:
        at = torch.arange(q.size(1), device=q.device).to(q.dtype)
        angles = at[:, None] * 10000.0 ** (-torch.arange(SIZE // 2, device=q.device) / SIZE * 2)
        cos, sin = (f(angles).repeat(1, 2)[None, :, None] for f in (torch.cos, torch.sin))
        first, second = q.chunk(2, -1)
        return q * cos.to(q.dtype) + torch.cat((-second, first), -1) * sin.to(q.dtype)

    def keys(self, k: Tensor) -> Tensor:
        return self.queries(k)


class MaskOfHeads(Plain):
    """A mask (B,H,N,N) as input."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x, mask)


class Capped(Plain):
    """Scores capped by tanh, as in Gemma 2."""

    def scores(self, scores: Tensor) -> Tensor:
        return 5.0 * torch.tanh(scores / 5.0)


class WeightsToo(Plain):
    """Gives the probabilities of every head as well."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        b, n, _ = x.shape
        q, k, v = (
            part(x).view(b, n, HEADS, SIZE).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        weights = (q @ k.transpose(-2, -1) / math.sqrt(SIZE)).softmax(-1)
        return self.output(x, weights @ v), weights


class GatedHeads(Plain):
    """The context of each head times a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HEADS)

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x)).transpose(1, 2)[..., None]
        result: Tensor = self.o((context * gate).transpose(1, 2).flatten(2))
        return result


class SizeFirst(Plain):
    """The output projection reads head sizes first, then heads."""

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        result: Tensor = self.o(context.permute(0, 2, 3, 1).flatten(2))
        return result


class QueriesToo(Plain):
    """Gives the sum of the queries as well, which needs all heads."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.attend(x, None), self.q(x).sum(-1)


class Gated(nn.Module):
    """Attention, then SwiGLU (Shazeer 2020), with its matrices apart or together."""

    def __init__(self, *, merged: bool, width: int = 48) -> None:
        super().__init__()
        self.attention = Plain()
        self.merged = merged
        self.up = nn.Linear(WIDTH, 2 * width if merged else width, bias=False)
        self.gate = nn.Linear(WIDTH, width, bias=False)
        self.down = nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        gate, up = self.up(x).chunk(2, -1) if self.merged else (self.gate(x), self.up(x))
        result: Tensor = x + self.down(functional.silu(gate) * up)
        return result


class Parallel(nn.Module):
    """Attention and a feed-forward of the same input, as in GPT-J."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Plain()
        self.first, self.second = nn.Linear(WIDTH, 50), nn.Linear(50, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        result: Tensor = x + self.attention(h) + self.second(functional.gelu(self.first(h)))
        return result


class Block(nn.Module):
    """Pre-LN attention with a mask of each head, and a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), MaskOfHeads()
        self.second_norm = nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), mask)
        hidden = functional.gelu(self.first(self.second_norm(x)))
        result: Tensor = x + self.second(hidden)
        return result
