"""Attention as people write it in PyTorch, each in the way that its name says.

All take x (B,N,D) and, where they take one, a bool mask that broadcasts to (B,H,N,N), True where a
key is visible. B batch, N tokens, D width, H heads, Dh head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -math.inf)
    return scores.softmax(-1) @ v


def eager_causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Torch.triu of ones, filled; a mask after it."""
    n = q.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    future = torch.triu(torch.ones(n, n, dtype=torch.bool, device=q.device), 1)
    scores = scores.masked_fill(future, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


def added_causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The mask of nn.Transformer.generate_square_subsequent_mask, added."""
    n = q.size(-2)
    bias = torch.triu(torch.full((n, n), -math.inf, dtype=q.dtype, device=q.device), 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return (scores + bias).softmax(-1) @ v


def scaled_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The scale on Q, softmax in float32, as many language models do."""
    scores = (q / math.sqrt(q.size(-1))) @ k.mT
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    return scores.float().softmax(-1).to(q.dtype) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sdpa_causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Separate(nn.Module):
    """Three projections."""

    def __init__(self, width: int, heads: int, attend: Attend, *, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        q, k, v = (
            part(x).view(b, n, self.heads, d // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        output: Tensor = self.o(self.attend(q, k, v, mask).transpose(1, 2).reshape(b, n, d))
        return output


class Chunked(nn.Module):
    """One projection, chunk."""

    def __init__(self, width: int, heads: int, attend: Attend, *, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv, self.o = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        q, k, v = (
            part.view(b, n, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        output: Tensor = self.o(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
        return output


class Unbound(Chunked):
    """One projection, five axes, unbind, as vision transformers do."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        five = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = five.unbind(0)
        output: Tensor = self.o(self.attend(q, k, v, mask).transpose(1, 2).reshape(b, n, d))
        return output


class TrilBuffer(Chunked):
    """GPT-2's: a buffer of the longest length, sliced."""

    def __init__(self, width: int, heads: int, attend: Attend, *, bias: bool = False) -> None:
        super().__init__(width, heads, attend, bias=bias)
        self.register_buffer("tril", torch.tril(torch.ones(1, 1, 64, 64)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n = x.size(1)
        assert isinstance(self.tril, Tensor)
        return super().forward(x, self.tril[:, :, :n, :n] != 0)


class Batched(Separate):
    """Three axes, (B·H,N,Dh), by torch.bmm."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        size = d // self.heads
        q, k, v = (
            part(x).view(b, n, self.heads, size).transpose(1, 2).reshape(b * self.heads, n, size)
            for part in (self.q, self.k, self.v)
        )
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(size), -1)
        rows = torch.bmm(weights, v).view(b, self.heads, n, size).transpose(1, 2).reshape(b, n, d)
        output: Tensor = self.o(rows)
        return output


class Torch(nn.Module):
    """torch.nn.MultiheadAttention."""

    def __init__(self, width: int, heads: int, attend: Attend, *, bias: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return output


class Stack(nn.Module):
    """Pre-LN blocks, x + attention(LayerNorm(x))."""

    def __init__(self, make: Callable[[], nn.Module], width: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.attentions = nn.ModuleList(make() for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            x = x + attention(norm(x), mask)
        return x
