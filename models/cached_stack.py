"""The attention stack with caches: the smallest model whose kernels for decoding can be counted.

Dimension letters as in `cached_attention`.
"""

from __future__ import annotations

from torch import Tensor, nn

from attnport.models.cached_attention import CachedSelfAttention
from attnport.models.cached_inputs import WithCaches, cache_inputs, cache_outputs, caches_of
from attnport.models.positions import Rotary


class CachedStack(WithCaches):
    """Pre-LN attention blocks without feed-forward, each with a cache of keys and values.

    Args:
        d_model: D.
        num_heads: H; must divide D.
        num_layers: How many blocks.
        kv_heads: G; must divide H.
        rotary: Whether queries and keys are turned by their positions, which are then an input.
        theta: The base of the rotary frequencies.
        bias: Whether the projections have a bias.
        static: Whether the caches are of constant length and written in place.

    Raises:
        ModuleError: If the sizes do not divide.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_layers: int = 4,
        kv_heads: int | None = None,
        rotary: bool = False,
        theta: float = 10000.0,
        bias: bool = False,
        static: bool = False,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers))
        self.attentions = nn.ModuleList(
            CachedSelfAttention(d_model, num_heads, kv_heads, bias) for _ in range(num_layers)
        )
        self.rotary = Rotary(d_model // num_heads, theta) if rotary else None
        positions = ("positions",) if rotary else ()
        self.input_names = ("x", *positions, "mask", *cache_inputs(num_layers, static=static))
        self.output_names = ("y", *cache_outputs(num_layers, static=static))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs every block with the same mask.

        Args:
            inputs: `input_names`, in order: x (B,N,D), with rotary positions (B,N) int64, mask
                (B,N,T) or (B,N,M), with static caches write_at (B,) int64, and the caches
                (B,G,P,K) or (B,G,M,K).

        Returns:
            y (B,N,D), and the caches with the new tokens.

        Raises:
            ModuleError: If their number is another, or the mask does not fit.
        """
        given = self.by_name(inputs)
        x, caches = given["x"], []
        rotation = None if self.rotary is None else self.rotary(given["positions"], x)
        for i, (norm, attention) in enumerate(zip(self.norms, self.attentions, strict=True)):
            attended, keys, values = attention(
                norm(x),
                given["mask"],
                caches_of(given, i),
                rotation=rotation,
                write_at=given.get("write_at"),
            )
            x = x + attended  # (B,N,D)
            caches += [keys, values]
        return (x, *caches)
