"""A small decoder-only language model with caches: embedding, pre-LN blocks, norm, head.

Dimension letters as in `cached_attention`; V size of the vocabulary, F feed-forward width.

With `norm`, `feed_forward` and `rotary` it is what Llama is ("rms", "gated-silu", rotary), or GPT-2
("layer", "gelu-tanh", learned positions); `from_transformers` loads their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnport.errors import ModuleError
from attnport.models.cached_attention import CachedSelfAttention, Rotation
from attnport.models.cached_inputs import WithCaches, cache_inputs, cache_outputs, caches_of
from attnport.models.positions import Rotary

NormKind = Literal["layer", "rms"]
FeedForwardKind = Literal["relu", "gelu", "gelu-tanh", "gated-silu"]
NORMS = ("layer", "rms")
FEED_FORWARDS = ("relu", "gelu", "gelu-tanh", "gated-silu")


@dataclass(frozen=True)
class DecoderOptions:
    """What a decoder's blocks are made of, beside their sizes.

    Attributes:
        kv_heads: G; must divide H. H if not given.
        d_ff: F; 4·D if not given.
        rotary: Rotary positions; else a learned table of them.
        theta: The base of the rotary frequencies.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        feed_forward: "relu", "gelu", "gelu-tanh" (its approximation), or "gated-silu".
        bias: Whether projections, feed-forward and LayerNorm have a bias.
        eps: Of the norms.
    """

    kv_heads: int | None = None
    d_ff: int | None = None
    rotary: bool = True
    theta: float = 10000.0
    norm: NormKind = "layer"
    feed_forward: FeedForwardKind = "gelu"
    bias: bool = False
    eps: float = 1e-5


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight, computed in float32 at least: squares overflow float16.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Takes and returns (B,N,D)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class CachedFeedForward(nn.Module):
    """Two matrices with an activation between them, or three with a gate; token by token."""

    def __init__(self, d_model: int, d_ff: int, kind: FeedForwardKind, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.W_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.W_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.W_gate = nn.Linear(d_model, d_ff, bias=bias) if kind == "gated-silu" else None

    def forward(self, x: Tensor) -> Tensor:
        """Takes and returns (B,N,D)."""
        inner = self.W_1(x)  # (B,N,D) -> (B,N,F)
        if self.W_gate is not None:
            inner = functional.silu(self.W_gate(x)) * inner
        elif self.kind == "relu":
            inner = torch.relu(inner)
        else:
            approximate = "tanh" if self.kind == "gelu-tanh" else "none"
            inner = functional.gelu(inner, approximate=approximate)
        output: Tensor = self.W_2(inner)  # (B,N,F) -> (B,N,D)
        return output


class CachedBlock(nn.Module):
    """Pre-LN self-attention with a cache, and feed-forward."""

    def __init__(self, d_model: int, num_heads: int, options: DecoderOptions) -> None:
        super().__init__()
        self.attention_norm = make_norm(d_model, options)
        self.attention = CachedSelfAttention(d_model, num_heads, options.kv_heads, options.bias)
        self.feed_forward_norm = make_norm(d_model, options)
        d_ff = options.d_ff or 4 * d_model
        self.feed_forward = CachedFeedForward(d_model, d_ff, options.feed_forward, options.bias)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        cache: tuple[Tensor, Tensor],
        rotation: Rotation | None,
        write_at: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes as `CachedSelfAttention.forward`."""
        attended, keys, values = self.attention(
            self.attention_norm(x), mask, cache, rotation=rotation, write_at=write_at
        )
        x = x + attended  # (B,N,D)
        return x + self.feed_forward(self.feed_forward_norm(x)), keys, values


class DecoderLM(WithCaches):
    """Token ids to the logits of what comes next, with a cache in every block.

    Args:
        d_model: D.
        num_heads: H; must divide D.
        num_layers: How many blocks.
        vocab_size: V.
        max_positions: Of the learned table of positions, where they are not rotary.
        tied: Whether the head's matrix is the embedding's.
        static: Whether the caches are of constant length and written in place.
        options: What the blocks are made of; a field of `DecoderOptions` each.

    Raises:
        ModuleError: If the sizes do not divide, or an option is none of its words.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_layers: int = 4,
        vocab_size: int = 1024,
        max_positions: int = 1024,
        tied: bool = True,
        static: bool = False,
        **options: object,
    ) -> None:
        super().__init__()
        chosen = checked_options(options)
        self.embedding = nn.Embedding(vocab_size, d_model)
        learned = None if chosen.rotary else nn.Embedding(max_positions, d_model)
        self.position_embedding = learned
        self.rotary = Rotary(d_model // num_heads, chosen.theta) if chosen.rotary else None
        self.blocks = nn.ModuleList(
            CachedBlock(d_model, num_heads, chosen) for _ in range(num_layers)
        )
        self.norm = make_norm(d_model, chosen)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        ids = ("token_ids", "positions", "mask")
        self.input_names = (*ids, *cache_inputs(num_layers, static=static))
        self.output_names = ("logits", *cache_outputs(num_layers, static=static))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Scores every token of the vocabulary behind each of the new tokens.

        Args:
            inputs: `input_names`, in order: token_ids and positions (B,N) int64, mask (B,N,T) or
                (B,N,M), with static caches write_at (B,) int64, and the caches (B,G,P,K) or
                (B,G,M,K).

        Returns:
            logits (B,N,V), and the caches with the new tokens.

        Raises:
            ModuleError: If their number is another, or the mask does not fit.
        """
        given = self.by_name(inputs)
        x, caches = self.embedding(given["token_ids"]), []  # (B,N) -> (B,N,D)
        if self.position_embedding is not None:
            x = x + self.position_embedding(given["positions"])
        rotation = None if self.rotary is None else self.rotary(given["positions"], x)
        for i, block in enumerate(self.blocks):
            cache, write_at = caches_of(given, i), given.get("write_at")
            x, keys, values = block(x, given["mask"], cache, rotation, write_at)
            caches += [keys, values]
        return (self.head(self.norm(x)), *caches)  # (B,N,D) -> (B,N,V)


def checked_options(given: dict[str, object]) -> DecoderOptions:
    """Options from keywords.

    Raises:
        ModuleError: If one does not exist, or is none of its words.
    """
    known = DecoderOptions.__dataclass_fields__
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ModuleError(f"a decoder has no option {unknown[0]!r}: it has {', '.join(known)}")
    for name, words in (("norm", NORMS), ("feed_forward", FEED_FORWARDS)):
        if name in given and given[name] not in words:
            raise ModuleError(f"{name}={given[name]!r} is not one of {', '.join(words)}")
    return DecoderOptions(**given)  # type: ignore[arg-type]


def make_norm(d_model: int, options: DecoderOptions) -> nn.Module:
    """The norm that the options ask for."""
    if options.norm == "rms":
        return RMSNorm(d_model, options.eps)
    return nn.LayerNorm(d_model, eps=options.eps, bias=options.bias)
