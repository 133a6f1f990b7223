"""What is exported: the reference modules, masks, and the registry of named models."""

from __future__ import annotations

from attnport.models.attention import (
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
    SingleHeadSelfAttention,
)
from attnport.models.blocks import AttentionStack, DecoderBlock, EncoderBlock
from attnport.models.cached_attention import CachedSelfAttention
from attnport.models.cached_decoder import CachedDecoderBlock, CrossKeysValues
from attnport.models.cached_stack import CachedStack
from attnport.models.decoder_lm import DecoderLM
from attnport.models.masks import causal_mask, causal_padding_mask, key_padding_mask
from attnport.models.registry import model_names, resolve
from attnport.models.sources import module_from_source, spec_from_source
from attnport.models.spec import ModelSpec
from attnport.models.transformers_weights import from_transformers

__all__ = [
    "AttentionStack",
    "CachedDecoderBlock",
    "CachedSelfAttention",
    "CachedStack",
    "CrossAttention",
    "CrossKeysValues",
    "DecoderBlock",
    "DecoderLM",
    "EncoderBlock",
    "MaskedMultiHeadSelfAttention",
    "ModelSpec",
    "MultiHeadSelfAttention",
    "SingleHeadSelfAttention",
    "causal_mask",
    "causal_padding_mask",
    "from_transformers",
    "key_padding_mask",
    "model_names",
    "module_from_source",
    "resolve",
    "spec_from_source",
]
