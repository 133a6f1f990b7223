"""The attention modules: single-head, multi-head, causal and cross-attention.

Dimension letters: B batch, N query tokens, T key tokens, D model width (d_model), H heads,
K head size (D/H).

The projections are `nn.Linear`s named W_Q, W_K, W_V and W_O, kept apart as the formula has them,
so that the weights of the usual textbook classes load; merging them is the exporter's work.

Every module has an attribute `attention_form`: "eager" writes the formula out, "sdpa" calls
PyTorch's fused function. Both give the same numbers.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from attnport.errors import ModuleError
from attnport.models.scaled_dot_product import (
    check_bias_dtype,
    check_broadcasts,
    clear_dead_rows,
    eager_attention,
    sdpa_attention,
)

AttentionForm = Literal["eager", "sdpa"]


class _Attention(nn.Module):
    """Projections and heads, shared by every attention module; context·W_O at the end."""

    attention_form: AttentionForm

    def __init__(self, d_model: int, num_heads: int, *, bias: bool, causal: bool) -> None:
        super().__init__()
        check_sizes(d_model, num_heads)
        self.d_model = d_model
        self.num_heads = num_heads
        self.causal = causal
        self.attention_form = "eager"
        self.W_Q = nn.Linear(d_model, d_model, bias=bias)
        self.W_K = nn.Linear(d_model, d_model, bias=bias)
        self.W_V = nn.Linear(d_model, d_model, bias=bias)
        self.W_O = nn.Linear(d_model, d_model, bias=bias)

    def extra_repr(self) -> str:
        form = self.attention_form
        return f"d_model={self.d_model}, num_heads={self.num_heads}, attention_form={form!r}"

    def _attend(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        q = self._heads(self.W_Q(x))  # (B,N,D) -> (B,H,N,K)
        k = self._heads(self.W_K(memory))  # (B,T,D) -> (B,H,T,K)
        v = self._heads(self.W_V(memory))  # (B,T,D) -> (B,H,T,K)
        _check_mask_and_bias(q, k, mask, bias)
        form = eager_attention if self.attention_form == "eager" else sdpa_attention
        context = form(q, k, v, causal=self.causal, mask=mask, bias=bias)  # (B,H,N,K)
        context = clear_dead_rows(context, q, k, causal=self.causal, mask=mask, bias=bias)
        output: Tensor = self.W_O(context.transpose(1, 2).flatten(2))  # (B,H,N,K) -> (B,N,D)
        return output

    def _heads(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        head_size = self.d_model // self.num_heads
        return projected.view(batch, length, self.num_heads, head_size).transpose(1, 2)


class MultiHeadSelfAttention(_Attention):
    """Self-attention in H heads; 4·D² parameters whatever H is (without bias).

    Args:
        d_model: D, the width of the input and the output.
        num_heads: H; must divide D.
        bias: Whether the four projections have a bias.

    Raises:
        ModuleError: If D is not divisible by H.
    """

    def __init__(self, d_model: int, num_heads: int, bias: bool = False) -> None:
        super().__init__(d_model, num_heads, bias=bias, causal=False)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None
    ) -> Tensor:
        """Attends from every token to every visible token.

        Args:
            x: (B,N,D).
            mask: Of any dtype, broadcasts to (B,H,N,N): hidden where it equals 0 or False.
            bias: Of x's dtype, broadcasts to (B,H,N,N): added to the scores.

        Returns:
            (B,N,D). A token that sees no key at all gets W_O's bias, or 0 without one.

        Raises:
            ModuleError: If mask or bias does not broadcast to (B,H,N,N), or bias has another
                dtype than x.
        """
        return self._attend(x, x, mask, bias)


class SingleHeadSelfAttention(MultiHeadSelfAttention):
    """Self-attention in one head of the full width: four projections (D,D), scale 1/√D.

    Args:
        d_model: D, the width of the input and the output.
        bias: Whether the four projections have a bias.
    """

    def __init__(self, d_model: int, bias: bool = False) -> None:
        super().__init__(d_model, num_heads=1, bias=bias)


class MaskedMultiHeadSelfAttention(MultiHeadSelfAttention):
    """The decoder's self-attention: token i sees tokens 0..i, and of these what mask leaves.

    Arguments, shapes and errors are those of `MultiHeadSelfAttention`.
    """

    def __init__(self, d_model: int, num_heads: int, bias: bool = False) -> None:
        super().__init__(d_model, num_heads, bias)
        self.causal = True


class CrossAttention(_Attention):
    """Queries from one sequence, keys and values from another (the decoder's from the encoder's).

    Args:
        d_model: D, the width of both inputs and of the output.
        num_heads: H; must divide D.
        bias: Whether the four projections have a bias.

    Raises:
        ModuleError: If D is not divisible by H.
    """

    def __init__(self, d_model: int, num_heads: int, bias: bool = False) -> None:
        super().__init__(d_model, num_heads, bias=bias, causal=False)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attends from every token of x to every visible token of memory.

        Args:
            x: (B,N,D), where the queries come from.
            memory: (B,T,D), where the keys and values come from.
            mask: Of any dtype, broadcasts to (B,H,N,T): hidden where it equals 0 or False.
            bias: Of x's dtype, broadcasts to (B,H,N,T): added to the scores.

        Returns:
            (B,N,D). A token that sees no key at all gets W_O's bias, or 0 without one.

        Raises:
            ModuleError: If mask or bias does not broadcast to (B,H,N,T), or bias has another
                dtype than x.
        """
        return self._attend(x, memory, mask, bias)


def check_sizes(d_model: int, num_heads: int) -> None:
    """Raises ModuleError unless D is divisible by H, with the numbers of heads that do divide."""
    if d_model < 1 or num_heads < 1:
        raise ModuleError(
            f"d_model={d_model} and num_heads={num_heads}: both must be 1 or more, "
            "such as d_model=512, num_heads=8"
        )
    if d_model % num_heads:
        divisors = [h for h in range(1, d_model + 1) if d_model % h == 0]
        below = max(h for h in divisors if h <= num_heads)
        above = [h for h in divisors if h > num_heads][:1]
        fitting = " or ".join(map(str, [below, *above]))
        raise ModuleError(
            f"d_model={d_model} is not divisible by num_heads={num_heads}: each head gets "
            f"d_model/num_heads columns, so take num_heads={fitting}, or another d_model"
        )


def _check_mask_and_bias(q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None) -> None:
    scores_shape = (q.size(0), q.size(1), q.size(2), k.size(2))
    if mask is not None:
        check_broadcasts("mask", mask, scores_shape)
    if bias is not None:
        check_broadcasts("bias", bias, scores_shape)
        check_bias_dtype(bias, q.dtype)
