"""Transformer blocks made of the attention modules: encoder, decoder, and a bare stack.

Dimension letters: B batch, N tokens of x, T tokens of memory, D model width (d_model),
F feed-forward width (d_ff), H heads.

There is no dropout: the blocks are for inference.

Source: Vaswani et al. 2017, "Attention Is All You Need", sections 3.1 and 3.3 (post-LN); the
pre-LN order is that of Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnport.models.attention import (
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
)


class FeedForward(nn.Module):
    """max(0, x·W_1 + b_1)·W_2 + b_2, token by token.

    Args:
        d_model: D.
        d_ff: F, the inner width.
        bias: Whether the two matrices have a bias.
    """

    def __init__(self, d_model: int, d_ff: int, bias: bool = True) -> None:
        super().__init__()
        self.W_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.W_2 = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Takes and returns (B,N,D)."""
        output: Tensor = self.W_2(torch.relu(self.W_1(x)))  # (B,N,D) -> (B,N,F) -> (B,N,D)
        return output


class _Residual(nn.Module):
    """A residual connection and its LayerNorm, after the sublayer (post-LN) or before (pre-LN)."""

    def __init__(self, d_model: int, *, norm_first: bool, bias: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm = nn.LayerNorm(d_model, bias=bias)

    def extra_repr(self) -> str:
        return f"norm_first={self.norm_first}"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output: Tensor = (
            x + sublayer(self.norm(x)) if self.norm_first else self.norm(x + sublayer(x))
        )
        return output  # (B,N,D)


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each with a residual connection and LayerNorm.

    Args:
        d_model: D.
        num_heads: H; must divide D.
        d_ff: F; 4·D if not given.
        norm_first: Pre-LN instead of the paper's post-LN.
        bias: Whether projections, feed-forward and LayerNorm have a bias.

    Raises:
        ModuleError: If D is not divisible by H.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadSelfAttention(d_model, num_heads, bias)
        self.attention_residual = _Residual(d_model, norm_first=norm_first, bias=bias)
        self.feed_forward = FeedForward(d_model, d_ff or 4 * d_model, bias)
        self.feed_forward_residual = _Residual(d_model, norm_first=norm_first, bias=bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encodes x.

        Args:
            x: (B,N,D).
            mask: Broadcasts to (B,H,N,N), usually key padding (B,1,1,N): hidden where it is 0.

        Returns:
            (B,N,D).

        Raises:
            ModuleError: If the mask does not broadcast.
        """
        x = self.attention_residual(x, lambda y: self.attention(y, mask))  # (B,N,D)
        x = self.feed_forward_residual(x, self.feed_forward)  # (B,N,D)
        return x


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the memory, and feed-forward.

    Each has a residual connection and LayerNorm. Arguments and errors are those of
    `EncoderBlock`.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.self_attention = MaskedMultiHeadSelfAttention(d_model, num_heads, bias)
        self.self_attention_residual = _Residual(d_model, norm_first=norm_first, bias=bias)
        self.cross_attention = CrossAttention(d_model, num_heads, bias)
        self.cross_attention_residual = _Residual(d_model, norm_first=norm_first, bias=bias)
        self.feed_forward = FeedForward(d_model, d_ff or 4 * d_model, bias)
        self.feed_forward_residual = _Residual(d_model, norm_first=norm_first, bias=bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Decodes x with the encoder's output.

        Args:
            x: (B,N,D).
            memory: (B,T,D), the encoder's output.
            memory_mask: Broadcasts to (B,H,N,T), usually the encoder's key padding (B,1,1,T):
                hidden where it is 0.
            mask: Broadcasts to (B,H,N,N): hides tokens of x besides those that causality hides.

        Returns:
            (B,N,D).

        Raises:
            ModuleError: If a mask does not broadcast.
        """
        x = self.self_attention_residual(x, lambda y: self.self_attention(y, mask))  # (B,N,D)
        x = self.cross_attention_residual(
            x, lambda y: self.cross_attention(y, memory, memory_mask)
        )  # (B,N,D)
        x = self.feed_forward_residual(x, self.feed_forward)  # (B,N,D)
        return x


class AttentionStack(nn.Module):
    """Pre-LN attention blocks without feed-forward, x + attention(LayerNorm(x)), one on another.

    The smallest model in which an engine's kernels for each block can be counted.

    Args:
        d_model: D.
        num_heads: H; must divide D.
        num_layers: How many blocks.
        causal: Whether token i sees tokens 0..i only.
        bias: Whether the projections have a bias.

    Raises:
        ModuleError: If D is not divisible by H.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_layers: int = 4,
        causal: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        attention = MaskedMultiHeadSelfAttention if causal else MultiHeadSelfAttention
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers))
        self.attentions = nn.ModuleList(
            attention(d_model, num_heads, bias) for _ in range(num_layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Runs every block with the same mask.

        Args:
            x: (B,N,D).
            mask: Broadcasts to (B,H,N,N): hidden where it is 0.

        Returns:
            (B,N,D).

        Raises:
            ModuleError: If the mask does not broadcast.
        """
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            x = x + attention(norm(x), mask)  # (B,N,D)
        return x
