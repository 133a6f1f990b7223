"""The stacks whose kernels facts of TensorRT are stated for: D = 512, H = 8, four pre-LN blocks.

`most_kernels` is what the forms of "forms below the floor" reach by hand in TensorRT for RTX 1.7.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from benchmarks.zoo.architecture import VOCABULARY, Architecture, activation, seeded, token_ids
from benchmarks.zoo.wrappers import Ids, PaddedIds
from torch import nn

D, H = 512, 8
_DH = D // H
_X = {0: "batch", 1: "seq"}
_AXES = {"batch": (1, 2, 3), "seq": (1, 16, 23)}
Ask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class Block(nn.Module):
    """x + W_O·attention(LayerNorm(x)), without a feed-forward."""

    def __init__(self, ask: Ask, *, bias: bool, kv_heads: int, rotary: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.q = nn.Linear(D, D, bias=bias)
        self.k = nn.Linear(D, kv_heads * _DH, bias=bias)
        self.v = nn.Linear(D, kv_heads * _DH, bias=bias)
        self.o = nn.Linear(D, D, bias=bias)
        self.ask, self.rotary = ask, rotary

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        b, n, _ = x.shape
        h = self.norm(x)
        q, k, v = (
            layer(h).view(b, n, -1, _DH).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        if self.rotary:
            q, k = _rotated(q), _rotated(k)
        times = H // k.shape[1]
        if times > 1:
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        y: torch.Tensor = x + self.o(self.ask(q, k, v, mask).transpose(1, 2).reshape(b, n, D))
        return y


def _rotated(t: torch.Tensor) -> torch.Tensor:
    places = torch.arange(t.shape[2], dtype=torch.float32)
    steps = 10000.0 ** (-torch.arange(0, _DH, 2, dtype=torch.float32) / _DH)
    angles = torch.cat([places[:, None] * steps] * 2, -1)
    left, right = t.chunk(2, -1)
    return t * angles.cos().to(t.dtype) + torch.cat([-right, left], -1) * angles.sin().to(t.dtype)


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(
        self,
        ask: Ask,
        *,
        blocks: int = 4,
        bias: bool = False,
        kv_heads: int = H,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(ask, bias=bias, kv_heads=kv_heads, rotary=rotary) for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, None)
        return x


class MaskedStack(Stack):
    """Likewise, every block with the same bool mask: True is visible."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        for block in self.blocks:
            x = block(x, mask)
        return x


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(_DH)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return scores.softmax(-1) @ v


def _stack(
    name: str, make: Callable[[], nn.Module], most: int, blocks: int = 4, **more: Any
) -> Architecture:
    fixed: dict[str, Any] = {
        "example": lambda: (activation(2, 16, D),),
        "dynamic_shapes": (_X,),
        "axes": _AXES,
    }
    return Architecture(
        name=name,
        family="stacks of 512/8",
        make=seeded(make),
        attentions=blocks,
        groups=blocks,
        why=f"{blocks} blocks; query, key and value project the normalised input",
        most_kernels=most,
        **(fixed | more),
    )


def _masked_stack(name: str, ask: Ask, most: int) -> Architecture:
    return _stack(
        name,
        lambda: MaskedStack(ask),
        most,
        example=lambda: (activation(2, 16, D), torch.ones(2, 1, 16, 16, dtype=torch.bool)),
        dynamic_shapes=(_X, {0: "batch", 2: "seq", 3: "seq"}),
        dead_rows=4,
    )


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=H,
        intermediate_size=4 * D,
        max_position_embeddings=64,
    )
    return PaddedIds(transformers.BertModel(config, add_pooling_layer=False))


def _llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=H,
        num_key_value_heads=H,
        intermediate_size=4 * D,
        max_position_embeddings=64,
    )
    return Ids(transformers.LlamaModel(config), use_cache=False)


STACKS = (
    _stack("stack-1-sdpa", lambda: Stack(sdpa, blocks=1), 5, blocks=1),
    _stack("stack-1-by-hand", lambda: Stack(by_hand, blocks=1), 5, blocks=1),
    _stack("stack-sdpa", lambda: Stack(sdpa), 17),
    _stack("stack-by-hand", lambda: Stack(by_hand), 17),
    _stack("stack-causal", lambda: Stack(causal), 17, causal=4),
    _masked_stack("stack-mask-sdpa", sdpa, 18),
    _masked_stack("stack-mask-by-hand", by_hand, 18),
    _stack("stack-bias", lambda: Stack(sdpa, bias=True), 21),
    _stack("stack-grouped", lambda: Stack(sdpa, kv_heads=2), 21),
    _stack("stack-rotary", lambda: Stack(sdpa, rotary=True), 21),
    _stack(
        "bert-512",
        _bert,
        18,
        blocks=2,
        dead_rows=2,
        example=lambda: (token_ids(), torch.ones(2, 16, dtype=torch.int64)),
        dynamic_shapes=(_X, _X),
    ),
    _stack("llama-512", _llama, 21, blocks=2, causal=2, example=lambda: (token_ids(),)),
)
