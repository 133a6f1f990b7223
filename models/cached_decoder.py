"""The decoder block with caches: its own tokens' as they come, the memory's computed once.

Dimension letters as in `cached_attention`; S tokens of the memory (the encoder's output).

The two graphs of one decoder: `CrossKeysValues` runs once for a memory, and `CachedDecoderBlock` for
every step, with what it gave as inputs.
"""

from __future__ import annotations

from torch import Tensor, nn

from attnport.models.attention import AttentionForm, check_sizes
from attnport.models.blocks import FeedForward
from attnport.models.cached_attention import CachedSelfAttention
from attnport.models.cached_inputs import WithCaches, cache_inputs, cache_outputs, caches_of
from attnport.models.scaled_dot_product import (
    check_broadcasts,
    clear_dead_rows,
    eager_attention,
    sdpa_attention,
)


class CrossQueries(nn.Module):
    """Cross-attention whose keys and values are given: the half that every step needs."""

    attention_form: AttentionForm

    def __init__(self, d_model: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        check_sizes(d_model, num_heads)
        self.num_heads = num_heads
        self.attention_form = "eager"
        self.W_Q = nn.Linear(d_model, d_model, bias=bias)
        self.W_O = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attends from x (B,N,D) to (B,H,S,K), where mask (B,1,1,S) is not 0; gives (B,N,D)."""
        q = heads_of(self.W_Q(x), self.num_heads)  # (B,N,D) -> (B,H,N,K)
        check_broadcasts("memory_mask", mask, (*q.shape[:3], keys.size(2)))
        form = eager_attention if self.attention_form == "eager" else sdpa_attention
        context = form(q, keys, values, causal=False, mask=mask, bias=None)  # (B,H,N,K)
        context = clear_dead_rows(context, q, keys, causal=False, mask=mask, bias=None)
        output: Tensor = self.W_O(context.transpose(1, 2).flatten(2))
        return output


class CrossKeysValues(nn.Module):
    """The other half of a cross-attention: keys and values of a memory, once.

    Attributes:
        output_names: What the results are called in a graph, and are as inputs of the block.
    """

    output_names = ("cross_key", "cross_value")

    def __init__(self, d_model: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.W_K = nn.Linear(d_model, d_model, bias=bias)
        self.W_V = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """From (B,S,D) to keys and values, (B,H,S,K) each."""
        return (
            heads_of(self.W_K(memory), self.num_heads),
            heads_of(self.W_V(memory), self.num_heads),
        )


class CachedDecoderBlock(WithCaches):
    """Cached self-attention, cross-attention to given keys and values, and feed-forward; pre-LN.

    Args:
        d_model: D.
        num_heads: H; must divide D.
        d_ff: F; 4·D if not given.
        bias: Whether projections, feed-forward and LayerNorm have a bias.
        static: Whether the caches are of constant length and written in place.

    Raises:
        ModuleError: If D is not divisible by H.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        bias: bool = False,
        static: bool = False,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model, bias=bias) for _ in range(3))
        self.self_attention = CachedSelfAttention(d_model, num_heads, bias=bias)
        self.cross_attention = CrossQueries(d_model, num_heads, bias)
        self.feed_forward = FeedForward(d_model, d_ff or 4 * d_model, bias)
        self.cross_keys_values = CrossKeysValues(d_model, num_heads, bias)
        self.input_names = (
            "x", "mask", "memory_mask", "cross_key", "cross_value", *cache_inputs(1, static=static),
        )  # fmt: skip
        self.output_names = ("y", *cache_outputs(1, static=static))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Decodes x.

        Args:
            inputs: `input_names`, in order: x (B,N,D), mask (B,N,T) or (B,N,M), memory_mask
                (B,1,1,S), cross_key and cross_value (B,H,S,K), with static caches write_at (B,)
                int64, and the caches (B,H,P,K) or (B,H,M,K).

        Returns:
            y (B,N,D), and the caches with the new tokens.

        Raises:
            ModuleError: If their number is another, or a mask does not fit.
        """
        given = self.by_name(inputs)
        x = given["x"]
        attended, keys, values = self.self_attention(
            self.norms[0](x), given["mask"], caches_of(given, 0), write_at=given.get("write_at")
        )
        x = x + attended  # (B,N,D)
        cross = (given["cross_key"], given["cross_value"], given["memory_mask"])
        x = x + self.cross_attention(self.norms[1](x), *cross)  # (B,N,D)
        return (x + self.feed_forward(self.norms[2](x)), keys, values)


def cross_keys_values(d_model: int, num_heads: int, **sizes: object) -> CrossKeysValues:
    """The half that runs once, of the block of these sizes made with the same seed."""
    return CachedDecoderBlock(d_model, num_heads, **sizes).cross_keys_values  # type: ignore[arg-type]


def heads_of(projected: Tensor, heads: int) -> Tensor:
    """(B,N,D) -> (B,H,N,K)."""
    batch, length, width = projected.shape
    return projected.view(batch, length, heads, width // heads).transpose(1, 2)
