"""torch.nn's modules, in the ways that were reported to export wrongly: D = 32, H = 2, Dh = 16."""

from __future__ import annotations

from typing import Any

import torch
from tests.cases.road import Args, Case, randn
from torch import nn

D, H = 32, 2
_X = {0: "b", 1: "n"}
_AXES = {"b": (1, 2, 4), "n": (1, 6, 14)}
_TWO_AXES = _AXES | {"t": (1, 9, 20)}


class Attention(nn.Module):
    """nn.MultiheadAttention of one tensor, its masks optional."""

    def __init__(self, *, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, **({"batch_first": True} | options))
        nn.init.normal_(self.attention.in_proj_bias, std=0.3)
        self.weights = weights

    def forward(
        self,
        x: torch.Tensor,
        padding: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Any:
        y, weights = self.attention(
            x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=self.weights
        )
        return (y, weights) if self.weights else y


class Cross(nn.Module):
    """Keys and values of widths of their own, from two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, kdim=24, vdim=40, batch_first=True)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return self.attention(query, key, value, need_weights=False)[0]


class Encoder(nn.Module):
    """nn.TransformerEncoder, nested tensors allowed, as it is by default."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> Any:
        return self.encoder(x, src_key_padding_mask=padding)


class Decoder(nn.Module):
    """nn.TransformerDecoder whose triangle is made in forward, from the length it is given."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(D, H, 2 * D, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.decoder(x, memory, tgt_mask=mask)


def _x(b: int, n: int) -> Args:
    return (randn(b, n, D),)


def _sequence_first(b: int, n: int) -> Args:
    return randn(n, b, D), None, torch.ones(n, n, dtype=torch.bool).triu(1)


def _padded(b: int, n: int) -> Args:
    """True hides: the last keys of the first item, all but the first of the last."""
    padding = torch.zeros(b, n, dtype=torch.bool)
    padding[0, max(1, n - 2) :] = True
    padding[-1, 1:] = True
    return randn(b, n, D), padding


def _all_padded(b: int, n: int) -> Args:
    """Every key of the first item is hidden."""
    padding = torch.zeros(b, n, dtype=torch.bool)
    padding[0] = True
    return randn(b, n, D), padding


TORCH_MODULES = (
    Case(
        "sequence-first-bool-mask",
        lambda: Attention(batch_first=False),
        _sequence_first,
        ({0: "n", 1: "b"}, None, {0: "n", 1: "n"}),
        _AXES,
    ),
    Case("fast-path", Attention, _x, (_X,), _AXES),
    Case(
        "weights-averaged",
        lambda: Attention(weights=True),
        _padded,
        (_X, _X),
        _AXES,
    ),
    Case("all-keys-padded", Attention, _all_padded, (_X, _X), _AXES),
    Case(
        "widths-of-their-own",
        Cross,
        lambda b, n: (randn(b, n, D), randn(b, n + 2, 24, seed=2), randn(b, n + 2, 40, seed=3)),
        (_X, {0: "b", 1: "t"}, {0: "b", 1: "t"}),
        _TWO_AXES,
    ),
    Case("exported-at-batch-1", Attention, _x, (_X,), _AXES, sizes=((1, 6), (3, 11), (2, 1))),
    Case(
        "encoder-layer",
        lambda: nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True, norm_first=True),
        lambda b, n: (randn(b, n, D),),
        (_X,),
        _AXES,
    ),
    Case("encoder", Encoder, _x, (_X,), _AXES),
    Case("encoder-padded", lambda: Encoder(1), _padded, (_X, _X), _AXES),
    Case(
        "decoder-made-triangle",
        Decoder,
        lambda b, n: (randn(b, n, D), randn(b, n + 3, D, seed=4)),
        (_X, {0: "b", 1: "t"}),
        _TWO_AXES,
    ),
)
