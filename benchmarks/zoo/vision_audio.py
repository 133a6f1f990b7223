"""Models of images and of sound, from `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.zoo import wrappers
from benchmarks.zoo.architecture import (
    BATCH,
    VOCABULARY,
    Architecture,
    B,
    D,
    H,
    activation,
    seeded,
    token_ids,
)
from torch import nn

_SIZES = {
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": 2 * D,
}
_IMAGE = _SIZES | {"image_size": 32, "patch_size": 8}
_SELF = "two layers with a self-attention each; query, key and value project one tensor"
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": D // 2,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
_WAVE = _SIZES | {
    "vocab_size": VOCABULARY,
    "conv_dim": [32, 32],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_SEQ = {"batch": BATCH, "samples": (160, 400, 640)}


def _model(model: str, config: Mapping[str, Any]) -> nn.Module:
    import transformers

    cls = getattr(transformers, model)
    made: nn.Module = cls(cls.config_class(**config))
    return made


def _vision(
    name: str,
    model: str,
    config: Mapping[str, Any],
    why: str = _SELF,
    attentions: int = 2,
    groups: int = 2,
    *,
    side: int = 32,
    **more: Any,
) -> Architecture:
    return Architecture(
        name,
        "vision",
        seeded(lambda: wrappers.Pixels(_model(model, config))),
        lambda: (activation(B, 3, side, side),),
        ({0: "batch"},),
        attentions=attentions,
        groups=groups,
        why=why,
        axes={"batch": BATCH},
        **more,
    )


def _sound(name: str, model: str, why: str = _SELF, **more: Any) -> Architecture:
    return Architecture(
        name,
        "sound",
        seeded(lambda: wrappers.Sound(_model(model, _WAVE))),
        lambda: (activation(B, 400),),
        ({0: "batch", 1: "samples"},),
        attentions=2,
        groups=2,
        why=why,
        axes=_SEQ,
        **more,
    )


def _clip_text() -> nn.Module:
    return wrappers.Ids(
        _model(
            "CLIPTextModel",
            _SIZES | {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "eos_token_id": 2},
        )
    )


VISION_AUDIO = (
    _vision("vit", "ViTModel", _IMAGE),
    _vision("deit", "DeiTModel", _IMAGE),
    _vision(
        "beit",
        "BeitModel",
        _IMAGE | {"use_relative_position_bias": True},
        _SELF + "; relative position bias; no bias on the key",
    ),
    _vision("dinov2", "Dinov2Model", _IMAGE | {"mlp_ratio": 2}),
    _vision(
        "dinov3",
        "DINOv3ViTModel",
        _IMAGE | {"num_register_tokens": 2},
        _SELF + "; rotary positions on the patches alone",
    ),
    _vision("clip-vision", "CLIPVisionModel", _IMAGE),
    _vision("siglip-vision", "SiglipVisionModel", _IMAGE | {"vision_use_head": False}),
    _vision("vit-msn", "ViTMSNModel", _IMAGE),
    _vision("ijepa", "IJepaModel", _IMAGE),
    _vision("yolos", "YolosModel", _IMAGE | {"image_size": [32, 32], "num_detection_tokens": 5}),
    _vision(
        "swin",
        "SwinModel",
        _SWIN,
        "four layers in two stages with a self-attention each, in windows, shifted in every other; "
        "relative position bias",
        4,
        4,
    ),
    _vision(
        "segformer",
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [32, D],
            "num_attention_heads": [2, H],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "mlp_ratios": [2, 2],
        },
        "two stages with a self-attention each; in the first one key and value project a shrunk "
        "image, so it has a group of two",
    ),
    Architecture(
        "clip-text",
        "text encoders",
        seeded(_clip_text),
        lambda: (token_ids(),),
        ({0: "batch", 1: "seq"},),
        attentions=2,
        groups=2,
        why="two layers with a causal self-attention each; query, key and value project one tensor",
        causal=2,
    ),
    _sound("wav2vec2", "Wav2Vec2Model"),
    _sound("hubert", "HubertModel"),
    _sound("unispeech", "UniSpeechModel"),
    _sound("data2vec-audio", "Data2VecAudioModel"),
    Architecture(
        "audio-spectrogram",
        "sound",
        seeded(
            lambda: wrappers.Sound(
                _model(
                    "ASTModel", _SIZES | {"patch_size": 8, "max_length": 32, "num_mel_bins": 16}
                )
            )
        ),
        lambda: (activation(B, 32, 16),),
        ({0: "batch"},),
        attentions=2,
        groups=2,
        why=_SELF,
        axes={"batch": BATCH},
    ),
)
