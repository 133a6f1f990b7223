"""Attention written by hand: packing, strides, norms, masks, positions, caches. Dh is 16."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.cases.road import Args, Case, randn
from torch import nn

H, DH = 2, 16
D = H * DH
X = {0: "b", 1: "n"}
AXES = {"b": (1, 2, 4), "n": (1, 6, 14)}


def x_at(b: int, n: int) -> Args:
    return (randn(b, n, D),)


class Packed(nn.Module):
    """x -> (B,H,N,Dh) three times by one projection; `attend` makes the context of them."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=bias), nn.Linear(D, D)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, H, DH).permute(2, 0, 3, 1, 4).unbind(0)
        y: torch.Tensor = self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, n, D))
        return y


class Chunked(Packed):
    """Split by chunk, and a view after contiguous."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, H, DH).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y: torch.Tensor = self.out(self.attend(q, k, v).transpose(1, 2).contiguous().view(b, n, D))
        return y


class NormalisedHeads(Packed):
    """LayerNorm on query and key, by head, as in recent vision transformers."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.q_norm, self.k_norm, self.by_hand = nn.LayerNorm(DH), nn.LayerNorm(DH), by_hand

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = self.q_norm(q), self.k_norm(k)
        if self.by_hand:
            c: torch.Tensor = ((q * DH**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
            return c
        return F.scaled_dot_product_attention(q, k, v, scale=DH**-0.5)


class RmsNormalisedHeads(nn.Module):
    """RMSNorm on query and key, three projections, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.q_norm, self.k_norm = nn.RMSNorm(DH, eps=1e-6), nn.RMSNorm(DH, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, H, DH).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return y.transpose(1, 2).reshape(b, n, D)


class Encoder(nn.Module):
    """BERT's attention: (1 - mask)·fill is added to the scores, then residual and LayerNorm."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.norm, self.fill = nn.LayerNorm(D), fill

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, H, DH).transpose(1, 2) for p in (self.q, self.k, self.v))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * self.fill
        weights = (q @ k.transpose(-1, -2) / math.sqrt(DH) + hidden).softmax(-1)
        y: torch.Tensor = self.norm(x + self.o((weights @ v).transpose(1, 2).reshape(b, n, D)))
        return y


class CrossBlock(nn.Module):
    """BART's cross-attention with residual and LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.norm = nn.LayerNorm(D)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, H, DH).transpose(1, 2)
        k, v = (p(memory).view(b, -1, H, DH).transpose(1, 2) for p in (self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, D)
        result: torch.Tensor = self.norm(x + self.o(y))
        return result


class Rotated(Packed):
    """Interleaved rotary positions, made for the length at run time, causal."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(_rotated(q), _rotated(k), v, is_causal=True)


def _rotated(t: torch.Tensor) -> torch.Tensor:
    steps = 10000.0 ** (-torch.arange(0, DH, 2, dtype=torch.float32) / DH)
    angles = torch.arange(t.shape[2], dtype=torch.float32)[:, None] * steps
    cos, sin = (f(angles).repeat_interleave(2, -1).to(t.dtype) for f in (torch.cos, torch.sin))
    turned = torch.stack((-t[..., 1::2], t[..., 0::2]), -1).flatten(-2)
    return t * cos + turned * sin


class Bucketed(Packed):
    """T5's relative position bias in logarithmic buckets; no scale."""

    def __init__(self) -> None:
        super().__init__(bias=False)
        self.table = nn.Embedding(8, H)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places = torch.arange(q.shape[2])
        far = places[None, :] - places[:, None]
        far_log = 2 + (torch.log(far.abs().clamp(min=1).float() / 2) / math.log(8) * 2).long()
        bucket = torch.where(far.abs() < 2, far.abs(), far_log.clamp(max=3)) + (far > 0).long() * 4
        bias = self.table(bucket).permute(2, 0, 1)[None]
        c: torch.Tensor = (q * 0.2 @ k.transpose(-1, -2) + bias).float().softmax(-1).to(
            v.dtype
        ) @ v
        return c


class Capped(Packed):
    """The scores are capped first and masked after, so that hidden keys get nothing."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n = q.shape[2]
        scores = torch.tanh(q @ k.transpose(-1, -2) / math.sqrt(DH) / 1.5) * 1.5
        future = torch.full((n, n), float("-inf"), dtype=q.dtype).triu(1)
        return (scores + future).softmax(-1) @ v


class MaskedHeads(Packed):
    """One projection and a bool mask: True is visible."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, H, DH).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        result: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, n, D))
        return result


class Conditional(Packed):
    """Attention in one branch of torch.cond."""

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        def attended(x: torch.Tensor) -> torch.Tensor:
            return Packed.forward(self, x)

        def left(x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

        result: torch.Tensor = torch.cond(flag, attended, left, (x,))
        return result


class Tokens(nn.Module):
    """An embedding of a mebibyte, which stands beside the graph, and a causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(9000, D), MaskedHeads()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        n = ids.shape[1]
        visible = torch.ones(n, n, dtype=torch.bool).tril()
        y: torch.Tensor = self.attention(self.embedding(ids), visible)
        return y


def _holes(b: int, n: int) -> Args:
    """An integer mask with holes on both sides, its first item whole."""
    mask = torch.ones(b, n, dtype=torch.int64)
    if n > 2:
        mask[-1, 0] = mask[-1, n // 2] = mask[-1, n - 1] = 0
    return randn(b, n, D), mask


def _left_padded(b: int, n: int) -> Args:
    """The first keys of every second item are padding."""
    mask = torch.ones(b, n, dtype=torch.int64)
    mask[::2, : n // 2] = 0
    return randn(b, n, D), mask


def _triangle(b: int, n: int) -> Args:
    return randn(b, n, D), torch.ones(1, 1, n, n, dtype=torch.bool).tril()


_MASKED = (X, {2: "n", 3: "n"})
_LOWEST = torch.finfo(torch.float32).min

BY_HAND = (
    Case("chunked", Chunked, x_at, (X,), AXES),
    Case("normalised-heads", lambda: NormalisedHeads(by_hand=False), x_at, (X,), AXES),
    Case("normalised-heads-by-hand", lambda: NormalisedHeads(by_hand=True), x_at, (X,), AXES),
    Case("rms-normalised-heads", RmsNormalisedHeads, x_at, (X,), AXES),
    Case("lowest-float", lambda: Encoder(_LOWEST), _holes, (X, X), AXES),
    Case("left-padding", lambda: Encoder(_LOWEST), _left_padded, (X, X), AXES),
    Case("minus-10000", lambda: Encoder(-1e4), _holes, (X, X), AXES),
    Case(
        "cross",
        CrossBlock,
        lambda b, n: (randn(b, n, D), randn(b, n + 2, D, seed=5)),
        (X, {0: "b", 1: "t"}),
        AXES | {"t": (1, 9, 20)},
    ),
    Case("rotary-interleaved", Rotated, x_at, (X,), AXES),
    Case("relative-buckets", Bucketed, x_at, (X,), AXES),
    Case("capped-then-masked", Capped, x_at, (X,), AXES),
    Case(
        "conditional",
        Conditional,
        lambda b, n: (randn(b, n, D), torch.tensor(True)),
        (X, None),
        AXES,
    ),
    Case("weights-beside", Tokens, lambda b, n: (torch.arange(b * n).view(b, n) * 7,), (X,), AXES),
)
BFLOAT = Case("bfloat16-mask", MaskedHeads, _triangle, _MASKED, AXES, dtypes=("bfloat16",))
