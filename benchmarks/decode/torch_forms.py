"""PyTorch's own ways to decode, in eager mode: caches joined at each step, and caches allocated once.

Letters: P past tokens, M capacity, H heads, Dh head size, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from attnport.models.cached_inputs import cache_inputs
from attnport.models.decoder_lm import DecoderLM
from attnport.models.positions import rotate


class TorchCat:
    """The module as it is exported: torch.cat of the past and the new token, and a mask."""

    def __init__(self, module: DecoderLM, past: dict[str, Tensor]) -> None:
        self._module = module
        self._past = [past[name] for name in cache_inputs(len(module.blocks), static=False)]
        self._now = self._past

    def reset(self) -> None:
        self._now = self._past

    def step(self, token: int) -> Tensor:
        """Logits behind one more token, (1,1,V)."""
        held = self._now[0].shape[2]
        ids, positions = torch.tensor([[token]]), torch.tensor([[held]])
        mask = torch.ones(1, 1, held + 1, dtype=torch.bool)
        logits, *self._now = self._module(ids, positions, mask, *self._now)
        result: Tensor = logits
        return result


class TorchPreallocated:
    """The same weights by hand: one buffer each, a view of what is filled, SDPA without a mask.

    As fast as eager PyTorch decodes: nothing is copied but the new row, and no token that is not
    there is looked at.
    """

    def __init__(self, module: DecoderLM, past: dict[str, Tensor], capacity: int) -> None:
        self._module, self._start = module, past["past_key_0"].shape[2]
        self._held = self._start
        self._caches = []
        for layer in range(len(module.blocks)):
            pair = []
            for what in ("key", "value"):
                given = past[f"past_{what}_{layer}"]
                buffer = torch.zeros(1, given.shape[1], capacity, given.shape[3])
                buffer[:, :, : self._start] = given
                pair.append(buffer)
            self._caches.append(pair)

    def reset(self) -> None:
        self._held = self._start

    def step(self, token: int) -> Tensor:
        """Logits behind one more token, (1,1,V)."""
        module, held = self._module, self._held
        x = module.embedding(torch.tensor([[token]]))
        assert module.rotary is not None
        rotation = module.rotary(torch.tensor([[held]]), x)
        for block, (keys, values) in zip(module.blocks, self._caches, strict=True):
            attention = block.attention
            normed = block.attention_norm(x)  # (1,1,D)
            q, k, v = (
                part(normed).view(1, 1, -1, attention.head_size).transpose(1, 2)
                for part in (attention.W_Q, attention.W_K, attention.W_V)
            )
            q, k = rotate(q, *rotation), rotate(k, *rotation)
            keys[:, :, held : held + 1], values[:, :, held : held + 1] = k, v
            context = functional.scaled_dot_product_attention(
                q, keys[:, :, : held + 1], values[:, :, : held + 1]
            )
            x = x + attention.W_O(context.transpose(1, 2).flatten(2))
            x = x + block.feed_forward(block.feed_forward_norm(x))
        self._held += 1
        logits: Tensor = module.head(module.norm(x))
        return logits
