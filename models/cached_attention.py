"""Self-attention with a cache of keys and values, for decoding token by token.

Dimension letters: B batch, N new tokens, P past tokens, T = P + N, M length of a static cache,
D model width (d_model), H heads, G key/value heads (kv_heads), K head size (D/H).

What a token sees is all in the mask: causality, padding on either side, lengths of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnport.errors import ModuleError
from attnport.models.attention import AttentionForm, check_sizes
from attnport.models.cache_operator import tensor_scatter
from attnport.models.positions import rotate
from attnport.models.scaled_dot_product import (
    check_broadcasts,
    clear_dead_rows,
    eager_attention,
    sdpa_attention,
)

Rotation = tuple[Tensor, Tensor]


class CachedSelfAttention(nn.Module):
    """Attention of new tokens to themselves and to those of the cache.

    Args:
        d_model: D, the width of the input and the output.
        num_heads: H; must divide D.
        kv_heads: G, of keys and values; must divide H. 1 is multi-query; H if not given.
        bias: Whether the four projections have a bias.

    Raises:
        ModuleError: If D is not divisible by H, or H by G.
    """

    attention_form: AttentionForm

    def __init__(
        self, d_model: int, num_heads: int, kv_heads: int | None = None, bias: bool = False
    ) -> None:
        super().__init__()
        check_sizes(d_model, num_heads)
        self.d_model, self.num_heads = d_model, num_heads
        self.kv_heads = kv_heads or num_heads
        self.head_size = d_model // num_heads
        if num_heads % self.kv_heads:
            raise ModuleError(
                f"num_heads={num_heads} is not divisible by kv_heads={kv_heads}: each key and "
                "value head serves num_heads/kv_heads query heads, so take a divisor, such as 1"
            )
        self.attention_form = "eager"
        kv_width = self.kv_heads * self.head_size
        self.W_Q = nn.Linear(d_model, d_model, bias=bias)
        self.W_K = nn.Linear(d_model, kv_width, bias=bias)
        self.W_V = nn.Linear(d_model, kv_width, bias=bias)
        self.W_O = nn.Linear(d_model, d_model, bias=bias)

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, kv_heads={self.kv_heads}, "
            f"attention_form={self.attention_form!r}"
        )

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        cache: tuple[Tensor, Tensor],
        *,
        rotation: Rotation | None = None,
        write_at: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attends from the new tokens.

        Args:
            x: (B,N,D).
            mask: (B,N,T), or (B,N,M) with a static cache: hidden where it is False or 0.
            cache: Keys and values, (B,G,P,K) each, or (B,G,M,K).
            rotation: Cosines and sines of the new tokens' positions, (B,1,N,K) each.
            write_at: (B,), for a static cache: the position of the first new row.

        Returns:
            (B,N,D), and keys and values with the new ones, (B,G,T,K) or (B,G,M,K). A token that
            sees no key at all gets W_O's bias, or 0 without one.

        Raises:
            ModuleError: If the mask does not fit.
        """
        q = self._heads(self.W_Q(x), self.num_heads)  # (B,N,D) -> (B,H,N,K)
        k = self._heads(self.W_K(x), self.kv_heads)  # (B,N,D) -> (B,G,N,K)
        v = self._heads(self.W_V(x), self.kv_heads)  # (B,N,D) -> (B,G,N,K)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        keys, values = (
            _joined(old, new, write_at) for old, new in zip(cache, (k, v), strict=True)
        )
        context = self._attend(q, self._repeat(keys), self._repeat(values), mask[:, None])
        output: Tensor = self.W_O(context.transpose(1, 2).flatten(2))  # (B,H,N,K) -> (B,N,D)
        return output, keys, values

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        check_broadcasts("mask", mask, (q.size(0), q.size(1), q.size(2), k.size(2)))
        form = eager_attention if self.attention_form == "eager" else sdpa_attention
        context = form(q, k, v, causal=False, mask=mask, bias=None)  # (B,H,N,K)
        return clear_dead_rows(context, q, k, causal=False, mask=mask, bias=None)

    def _heads(self, projected: Tensor, heads: int) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, heads, self.head_size).transpose(1, 2)

    def _repeat(self, heads: Tensor) -> Tensor:
        """Each key and value head for every query head that it serves: (B,G,T,K) -> (B,H,T,K)."""
        if self.kv_heads == self.num_heads:
            return heads
        batch, kv_heads, length, size = heads.shape
        served = self.num_heads // kv_heads
        wide = heads[:, :, None].expand(batch, kv_heads, served, length, size)
        return wide.reshape(batch, self.num_heads, length, size)


def _joined(cache: Tensor, new: Tensor, write_at: Tensor | None) -> Tensor:
    if write_at is None:
        return torch.cat([cache, new], dim=2)  # (B,G,P,K), (B,G,N,K) -> (B,G,T,K)
    written: Tensor = tensor_scatter(cache, new, write_at)
    return written  # (B,G,M,K)
