"""Scaled dot-product attention on heads, in the two forms that PyTorch users write.

Dimension letters: B batch, H heads, N query tokens, T key tokens, K head size.

`mask` hides the positions where it equals 0, whatever its dtype; `bias` is added to the scores.
A query without a single visible key (every key hidden by the mask, by causality, or by a bias of
-inf) is a dead row: its context is 0. Finite sentinels such as -10000 are arithmetic, not hiding.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1:
softmax(Q·Kᵀ/√K)·V.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnport.errors import ModuleError


def eager_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Attention as the formula reads, one operation after the other.

    Args:
        q: Queries, (B,H,N,K).
        k: Keys, (B,H,T,K).
        v: Values, (B,H,T,K).
        causal: Whether query i sees keys 0..i only.
        mask: Broadcasts to (B,H,N,T); hidden where it equals 0.
        bias: Broadcasts to (B,H,N,T); added to the scores.

    Returns:
        The context, (B,H,N,K), NaN on dead rows.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B,H,N,K) x (B,H,K,T) -> (B,H,N,T)
    if causal:
        scores = scores.masked_fill(_future(q, k), -math.inf)  # (B,H,N,T)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -math.inf)  # (B,H,N,T)
    if bias is not None:
        scores = scores + bias  # (B,H,N,T)
    return torch.softmax(scores, dim=-1) @ v  # (B,H,N,T) x (B,H,T,K) -> (B,H,N,K)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The same numbers from `scaled_dot_product_attention`; arguments as `eager_attention`.

    The function takes either `is_causal` or one mask, so several are combined into one.
    """
    if mask is None and bias is None:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)  # (B,H,N,K)
    visible = _visible_by_shape_or_mask(q, k, causal=causal, mask=mask)
    attn_mask = visible if bias is None else bias
    if visible is not None and bias is not None:
        attn_mask = torch.where(visible, bias, -math.inf)
    assert attn_mask is not None
    attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]  # SDPA wants 2 dimensions or more
    return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)  # (B,H,N,K)


def clear_dead_rows(
    context: Tensor,
    q: Tensor,
    k: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Gives dead rows the context 0; with neither mask nor bias there is none to look for.

    Whether a row is dead is read from the mask and the bias, not from the scores: a second
    reader of the scores would keep an engine from fusing the attention.

    Returns:
        The context, (B,H,N,K).
    """
    if mask is None and bias is None:
        return context
    visible = _visible_by_shape_or_mask(q, k, causal=causal, mask=mask)
    if bias is not None:
        finite = bias != -math.inf
        visible = finite if visible is None else visible & finite
    assert visible is not None
    alive = visible.any(dim=-1, keepdim=True)  # (B|1,H|1,N|1,1)
    return torch.where(alive, context, 0.0)  # (B,H,N,K)


def check_broadcasts(name: str, given: Tensor, scores_shape: tuple[int, int, int, int]) -> None:
    """Refuses a mask or bias that would not broadcast to the scores, or would enlarge them.

    Not while a graph is captured: comparing symbolic sizes would bind them to the example's.

    Raises:
        ModuleError: With both shapes.
    """
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return
    shape = tuple(given.shape)
    fits = len(shape) <= 4 and all(
        size in (1, full)
        for size, full in zip(reversed(shape), reversed(scores_shape), strict=False)
    )
    if not fits:
        raise ModuleError(
            f"{name} has shape {shape}, which does not broadcast to the scores' shape "
            f"(batch, heads, queries, keys) = {scores_shape}: give each dimension that size or 1, "
            f"such as {name}[:, None] for a batch of (queries, keys)"
        )


def check_bias_dtype(bias: Tensor, dtype: torch.dtype) -> None:
    """Refuses a bias that would change the dtype of the scores, or that is meant as a mask.

    Raises:
        ModuleError: Unless the bias has the scores' dtype.
    """
    if bias.dtype != dtype:
        raise ModuleError(
            f"bias is {bias.dtype} and the scores are {dtype}: a bias is added to the scores, "
            f"so give it as {dtype}; positions to hide (0 or False) go into mask instead"
        )


def _future(q: Tensor, k: Tensor) -> Tensor:
    """True where the key comes after the query, (N,T)."""
    return torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).triu(1)


def _visible_by_shape_or_mask(
    q: Tensor, k: Tensor, *, causal: bool, mask: Tensor | None
) -> Tensor | None:
    """True where a key is hidden neither by causality nor by the mask; None if nothing hides."""
    if mask is None:
        return ~_future(q, k) if causal else None
    return (mask != 0) & ~_future(q, k) if causal else mask != 0
