"""The registry's models that decode token by token, with their caches as inputs.

Axes: batch, seq new tokens, past tokens in the caches, total = past + seq, memory. A static cache
has `capacity` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from attnport.axes import Axis, AxisSum
from attnport.models.cached_decoder import CachedDecoderBlock, cross_keys_values
from attnport.models.cached_stack import CachedStack
from attnport.models.decoder_lm import FEED_FORWARDS, NORMS, DecoderLM
from attnport.models.entry import Entry, Size, SizeType

_LAYERS = {"d_model": 512, "num_heads": 8, "num_layers": 4}
_HEADS = {"d_model": 512, "num_heads": 8}
_CAPACITY = {"capacity": 1024}
_STACK: dict[str, SizeType] = {"kv_heads": int, "rotary": bool, "theta": float, "bias": bool}
_LM: dict[str, SizeType] = {
    **_STACK,
    "tied": bool,
    "d_ff": int,
    "norm": NORMS,
    "feed_forward": FEED_FORWARDS,
    "max_positions": int,
}
_DECODER: dict[str, SizeType] = {"d_ff": int, "bias": bool}
_IDS = ("token_ids:int64[batch,seq]=token_ids",)
_POSITIONS = ("positions:int64[batch,seq]=positions",)
_X = ("x:float32[batch,seq,d_model]=activation",)


def _axes(sizes: Mapping[str, Size]) -> tuple[Axis, ...]:
    """No more new tokens at a time than a static cache has room for."""
    most = min(512, int(sizes.get("capacity", 512)))
    seq, past = Axis("seq", 1, min(16, most), most), Axis("past", 0, 64, 512)
    total = AxisSum("total", ("past", "seq")).among({"seq": seq, "past": past})
    return (seq, past, total, Axis("memory", 1, 128, 512))


def _caches(sizes: Mapping[str, Size]) -> tuple[str, ...]:
    """The mask and the caches, which have as many tokens."""
    heads = int(sizes.get("kv_heads", sizes["num_heads"]))
    size = int(sizes["d_model"]) // int(sizes["num_heads"])
    static = "capacity" in sizes
    cached, keys = (sizes["capacity"], sizes["capacity"]) if static else ("past", "total")
    word = "cache" if static else "past"
    return (
        f"mask:bool[batch,seq,{keys}]=mask",
        *(["write_at:int64[batch]=write_at"] if static else []),
        *(
            f"{word}_{what}_{i}:float32[batch,{heads},{cached},{size}]=cache"
            for i in range(int(sizes["num_layers"]))
            for what in ("key", "value")
        ),
    )


def _stack_inputs(sizes: Mapping[str, Size]) -> tuple[str, ...]:
    return (*_X, *(_POSITIONS if sizes.get("rotary") else ()), *_caches(sizes))


def _lm_inputs(sizes: Mapping[str, Size]) -> tuple[str, ...]:
    return (*_IDS, *_POSITIONS, *_caches(sizes))


def _decoder_inputs(sizes: Mapping[str, Size]) -> tuple[str, ...]:
    heads, width = int(sizes["num_heads"]), int(sizes["d_model"])
    mask, *caches = _caches({**sizes, "num_layers": 1})
    return (
        *_X,
        mask,
        "memory_mask:bool[batch,1,1,memory]=mask",
        *(
            f"cross_{what}:float32[batch,{heads},memory,{width // heads}]=activation"
            for what in ("key", "value")
        ),
        *caches,
    )


def _static(module: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The module does not know how long its caches are: the inputs do."""

    def make(capacity: int, **sizes: Size) -> nn.Module:
        return module(static=True, **sizes)

    return make


DECODING = (
    Entry(
        "cached-stack",
        CachedStack,
        _stack_inputs,
        "the attention stack, decoding: caches of keys and values in, and out with the new tokens",
        _LAYERS,
        _STACK,
        axes=_axes,
    ),
    Entry(
        "cached-stack-static",
        _static(CachedStack),
        _stack_inputs,
        "the same with caches of constant length, written in place",
        {**_LAYERS, **_CAPACITY},
        _STACK,
        axes=_axes,
    ),
    Entry(
        "decoder-lm",
        DecoderLM,
        _lm_inputs,
        "a decoder-only language model with caches: token ids to logits",
        {**_LAYERS, "vocab_size": 1024},
        _LM,
        axes=_axes,
    ),
    Entry(
        "decoder-lm-static",
        _static(DecoderLM),
        _lm_inputs,
        "the same with caches of constant length, written in place",
        {**_LAYERS, "vocab_size": 1024, **_CAPACITY},
        _LM,
        axes=_axes,
    ),
    Entry(
        "cached-decoder-block",
        CachedDecoderBlock,
        _decoder_inputs,
        "the decoder's block, decoding: cached self-attention, and the memory's keys and values, "
        "computed once by cross-keys-values, as inputs",
        _HEADS,
        _DECODER,
        axes=_axes,
    ),
    Entry(
        "cross-keys-values",
        cross_keys_values,
        ("memory:float32[batch,memory,d_model]=activation",),
        "keys and values of the memory for the cached-decoder-block of the same sizes",
        _HEADS,
        _DECODER,
        axes=_axes,
    ),
)
