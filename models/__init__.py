"""What is exported: the reference modules, masks, and the registry of named models."""

from __future__ import annotations

from attnport.models.attention import (
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
    SingleHeadSelfAttention,
)
from attnport.models.blocks import AttentionStack, DecoderBlock, EncoderBlock
from attnport.models.masks import causal_mask, causal_padding_mask, key_padding_mask
from attnport.models.registry import model_names, resolve
from attnport.models.sources import module_from_source, spec_from_source
from attnport.models.spec import ModelSpec

__all__ = [
    "AttentionStack",
    "CrossAttention",
    "DecoderBlock",
    "EncoderBlock",
    "MaskedMultiHeadSelfAttention",
    "ModelSpec",
    "MultiHeadSelfAttention",
    "SingleHeadSelfAttention",
    "causal_mask",
    "causal_padding_mask",
    "key_padding_mask",
    "model_names",
    "module_from_source",
    "resolve",
    "spec_from_source",
]
