"""Encoders with decoders, from `transformers`, and their halves."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from benchmarks.zoo import wrappers
from benchmarks.zoo.architecture import (
    BATCH,
    SEQ,
    VOCABULARY,
    Architecture,
    B,
    D,
    H,
    S,
    activation,
    seeded,
    token_ids,
)
from torch import nn

_BART = {
    "vocab_size": VOCABULARY,
    "d_model": D,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": H,
    "decoder_attention_heads": H,
    "encoder_ffn_dim": 2 * D,
    "decoder_ffn_dim": 2 * D,
    "max_position_embeddings": 64,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": D,
    "d_kv": 16,
    "d_ff": 2 * D,
    "num_layers": 2,
    "num_heads": H,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
_WHISPER = _BART | {
    "pad_token_id": 0,
    "num_mel_bins": 8,
    "max_source_positions": 32,
    "max_target_positions": 64,
}
_BOTH = (
    "two encoder layers with a self-attention, two decoder layers with a causal one and one on the "
    "encoder's result, whose key and value share their input"
)
_DECODER = (
    "two layers with a causal self-attention and one on the memory, whose key and value share "
    "their input"
)
_CLAMPS = "; in float16 it asks in Python whether all is finite, so bfloat16 is its half precision"
_TWO_SEQUENCES = {"batch": BATCH, "source": SEQ, "target": (1, 11, 19)}
_IDS = {0: "batch", 1: "seq"}


def _entry(
    name: str,
    model: str,
    config: Mapping[str, Any],
    wrap: Callable[[nn.Module], nn.Module],
    example: Callable[[], tuple[torch.Tensor, ...]],
    shapes: tuple[Mapping[int, str], ...],
    **expected: Any,
) -> Architecture:
    def make() -> nn.Module:
        home, _, cls_name = model.rpartition(".")
        cls = getattr(importlib.import_module(f"transformers.{home}".rstrip(".")), cls_name)
        return wrap(cls(cls.config_class(**config)))

    return Architecture(name, "encoders with decoders", seeded(make), example, shapes, **expected)


def _both(
    name: str, model: str, config: Mapping[str, Any], why: str = _BOTH, **more: Any
) -> Architecture:
    return _entry(
        name,
        model,
        config,
        wrappers.SourceAndTarget,
        lambda: (token_ids(), token_ids(seq=11)),
        ({0: "batch", 1: "source"}, {0: "batch", 1: "target"}),
        **({"attentions": 6, "groups": 6, "causal": 2, "axes": _TWO_SEQUENCES, "why": why} | more),
    )


def _whisper_encoder(model: nn.Module) -> nn.Module:
    return wrappers.Sound(model)


def _decoder_half(model: nn.Module) -> nn.Module:
    return wrappers.TargetAndMemory(model)


SEQUENCES = (
    _both("bart", "BartModel", _BART, _BOTH + _CLAMPS, half="bfloat16"),
    _both("mbart", "MBartModel", _BART),
    _both(
        "marian",
        "MarianModel",
        _BART | {"pad_token_id": 0, "decoder_start_token_id": 0},
        _BOTH + _CLAMPS,
        half="bfloat16",
    ),
    _both("pegasus", "PegasusModel", _BART),
    _both("m2m-100", "M2M100Model", _BART),
    _both("blenderbot", "BlenderbotModel", _BART),
    _both(
        "t5",
        "T5Model",
        _T5,
        _BOTH + "; no scale, and a position bias, so no self-attention is purely causal",
        causal=0,
    ),
    _entry(
        "t5-encoder",
        "T5EncoderModel",
        _T5,
        wrappers.Ids,
        lambda: (token_ids(),),
        (_IDS,),
        attentions=2,
        groups=2,
        why="two layers with a self-attention each, a relative position bias and no scale",
    ),
    _entry(
        "bart-decoder",
        "models.bart.modeling_bart.BartDecoder",
        _BART,
        _decoder_half,
        lambda: (token_ids(seq=11), activation(B, S, D)),
        ({0: "batch", 1: "target"}, {0: "batch", 1: "source"}),
        attentions=4,
        groups=4,
        causal=2,
        why=_DECODER,
        axes=_TWO_SEQUENCES,
    ),
    _entry(
        "whisper-encoder",
        "models.whisper.modeling_whisper.WhisperEncoder",
        _WHISPER,
        _whisper_encoder,
        lambda: (activation(B, 8, 64),),
        ({0: "batch"},),
        attentions=2,
        groups=2,
        why="two layers with a self-attention each; the length of 32 is fixed by the architecture; "
        "the key's projection has no bias",
        axes={"batch": BATCH},
    ),
    _entry(
        "whisper-decoder",
        "models.whisper.modeling_whisper.WhisperDecoder",
        _WHISPER,
        _decoder_half,
        lambda: (token_ids(seq=11), activation(B, S, D)),
        ({0: "batch", 1: "target"}, {0: "batch", 1: "source"}),
        attentions=4,
        groups=4,
        causal=2,
        why=_DECODER,
        axes=_TWO_SEQUENCES,
    ),
)
