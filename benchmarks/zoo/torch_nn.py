"""torch.nn's own attention modules."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.zoo.architecture import (
    BATCH,
    SEQ,
    Architecture,
    B,
    D,
    H,
    S,
    activation,
    seeded,
)
from benchmarks.zoo.limits import WEIGHTS
from torch import nn

_X = {0: "batch", 1: "seq"}
_TWO = ({0: "batch", 1: "target"}, {0: "batch", 1: "source"})
_TWO_AXES = {"batch": BATCH, "source": SEQ, "target": (1, 11, 19)}
_PACKED = "in_proj_weight holds query, key and value"


class SelfAttention(nn.Module):
    """nn.MultiheadAttention of one tensor."""

    def __init__(self, *, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, **({"batch_first": True} | options))
        self.weights = weights

    def forward(self, x: torch.Tensor) -> Any:
        y, weights = self.attention(x, x, x, need_weights=self.weights)
        return (y, weights) if self.weights else y


class PaddedSelfAttention(SelfAttention):
    """Likewise, with a padding mask: True hides."""

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> Any:  # type: ignore[override]
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class CrossAttention(nn.Module):
    """nn.MultiheadAttention of two tensors."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True, **options)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> Any:
        return self.attention(x, memory, memory, need_weights=False)[0]


class CausalDecoder(nn.Module):
    """nn.TransformerDecoder whose causal mask is made in forward."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(D, H, 2 * D, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)


def _encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True, **options)


def _encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True, **options),
        2,
        enable_nested_tensor=False,
    )


class PaddedEncoder(nn.Module):
    """nn.TransformerEncoder with a padding mask: True hides."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> Any:
        return self.encoder(x, src_key_padding_mask=padding)


def _x() -> tuple[torch.Tensor, ...]:
    return (activation(B, S, D),)


def _padded() -> tuple[torch.Tensor, ...]:
    return activation(B, S, D), torch.zeros(B, S, dtype=torch.bool)


def _two() -> tuple[torch.Tensor, ...]:
    return activation(B, 11, D), activation(B, S, D, seed=2)


def _nn(name: str, make: Any, why: str, attentions: int, groups: int, **more: Any) -> Architecture:
    defaults: dict[str, Any] = {"example": _x, "dynamic_shapes": (_X,)}
    return Architecture(
        name=name,
        family="torch.nn",
        make=seeded(make),
        attentions=attentions,
        groups=groups,
        why=why,
        **(defaults | more),
    )


def _nn_two(
    name: str, make: Any, why: str, attentions: int, groups: int, **more: Any
) -> Architecture:
    two: dict[str, Any] = {"example": _two, "dynamic_shapes": _TWO, "axes": _TWO_AXES}
    return _nn(name, make, why, attentions, groups, **(two | more))


TORCH_NN = (
    _nn("nn-mha", SelfAttention, _PACKED, 1, 1),
    _nn(
        "nn-mha-padded",
        PaddedSelfAttention,
        _PACKED,
        1,
        1,
        example=_padded,
        dynamic_shapes=(_X, _X),
        dead_rows=1,
    ),
    _nn(
        "nn-mha-sequence-first",
        lambda: SelfAttention(batch_first=False),
        _PACKED,
        1,
        1,
        example=lambda: (activation(S, B, D),),
        dynamic_shapes=({0: "seq", 1: "batch"},),
    ),
    _nn(
        "nn-mha-weights",
        lambda: SelfAttention(weights=True),
        _PACKED,
        1,
        1,
        unfusable={WEIGHTS: 1},
    ),
    _nn_two(
        "nn-mha-cross",
        CrossAttention,
        "in_proj_weight holds all three; key and value share the memory",
        1,
        1,
    ),
    _nn_two(
        "nn-mha-cross-widths",
        lambda: CrossAttention(kdim=48, vdim=48),
        "three matrices of their own; key and value share the memory",
        1,
        1,
        example=lambda: (activation(B, 11, D), activation(B, S, 48, seed=2)),
    ),
    _nn("nn-encoder-layer", _encoder_layer, _PACKED, 1, 1),
    _nn("nn-encoder-layer-pre", lambda: _encoder_layer(norm_first=True), _PACKED, 1, 1),
    _nn("nn-encoder", _encoder, f"two layers; {_PACKED}", 2, 2),
    _nn(
        "nn-encoder-padded",
        PaddedEncoder,
        f"two layers; {_PACKED}",
        2,
        2,
        example=_padded,
        dynamic_shapes=(_X, _X),
        dead_rows=2,
    ),
    _nn_two(
        "nn-decoder",
        lambda: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(D, H, 2 * D, batch_first=True), 2
        ),
        "two layers with a self-attention and one on the memory",
        4,
        4,
    ),
    _nn_two(
        "nn-decoder-causal",
        CausalDecoder,
        "two layers with a causal self-attention and one on the memory",
        4,
        4,
        causal=2,
    ),
    _nn_two(
        "nn-transformer",
        lambda: nn.Transformer(D, H, 2, 2, 2 * D, batch_first=True),
        "two encoder layers, two decoder layers with two attentions each",
        6,
        6,
        example=lambda: (activation(B, S, D), activation(B, 11, D, seed=2)),
        dynamic_shapes=({0: "batch", 1: "source"}, {0: "batch", 1: "target"}),
    ),
)
