"""Decoders of text, from `transformers`: purely causal without a padding mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.zoo import wrappers
from benchmarks.zoo.architecture import VOCABULARY, Architecture, D, H, seeded, token_ids, visible
from benchmarks.zoo.limits import SINKS, SOFTCAP
from torch import nn

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": 2 * D,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SELF = "two layers with a causal self-attention each; query, key and value project one tensor"
_PACKED = "two layers with a causal self-attention each; one matrix holds query, key and value"
_GROUPED = _SELF + " (two key/value heads for four of the query)"
_GPT = {"vocab_size": VOCABULARY, "n_embd": D, "n_layer": 2, "n_head": H, "n_positions": 64}


def _decoder(
    name: str,
    model: str,
    why: str = _SELF,
    *,
    padded: bool = False,
    causal: int = 2,
    sizes: dict[str, Any] | None = None,
    unfusable: Mapping[str, int] | None = None,
    **more: Any,
) -> Architecture:
    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, model)
        made = cls(cls.config_class(**((_SIZES if sizes is None else sizes) | more)))
        wrapper = wrappers.PaddedIds if padded else wrappers.Ids
        return wrapper(made, use_cache=False)

    shape = {0: "batch", 1: "seq"}
    return Architecture(
        name,
        "text decoders",
        seeded(make),
        (lambda: (token_ids(), visible())) if padded else lambda: (token_ids(),),
        (shape, shape) if padded else (shape,),
        attentions=2,
        groups=2,
        why=why,
        causal=0 if padded else causal,
        dead_rows=2 if padded else 0,
        unfusable=unfusable or {},
    )


DECODERS = (
    _decoder("gpt2", "GPT2Model", _PACKED, sizes=_GPT),
    _decoder("gpt2-padded", "GPT2Model", _PACKED, padded=True, sizes=_GPT),
    _decoder("gpt2-eager", "GPT2Model", _PACKED, sizes=_GPT, attn_implementation="eager"),
    _decoder(
        "gpt-neo",
        "GPTNeoModel",
        _SELF + "; no scale, the second layer sees a window of 8, so it is not purely causal",
        causal=1,
        sizes={
            "vocab_size": VOCABULARY,
            "hidden_size": D,
            "num_layers": 2,
            "num_heads": H,
            "intermediate_size": 2 * D,
            "max_position_embeddings": 64,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    _decoder("gpt-neox", "GPTNeoXModel", _PACKED + "; rotary positions on a quarter of the head"),
    _decoder(
        "gptj", "GPTJModel", _SELF + "; interleaved rotary positions", sizes=_GPT, rotary_dim=8
    ),
    _decoder(
        "codegen",
        "CodeGenModel",
        _PACKED + "; interleaved rotary positions",
        sizes=_GPT,
        rotary_dim=8,
    ),
    _decoder(
        "opt",
        "OPTModel",
        sizes={
            "vocab_size": VOCABULARY,
            "hidden_size": D,
            "ffn_dim": 2 * D,
            "num_hidden_layers": 2,
            "num_attention_heads": H,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": D,
        },
    ),
    _decoder(
        "bloom",
        "BloomModel",
        _PACKED + ", head by head; ALiBi, so not purely causal",
        causal=0,
        sizes={"vocab_size": VOCABULARY, "hidden_size": D, "n_layer": 2, "n_head": H},
    ),
    _decoder(
        "mpt",
        "MptModel",
        _PACKED + "; ALiBi, so not purely causal",
        causal=0,
        sizes={
            "vocab_size": VOCABULARY,
            "d_model": D,
            "n_layers": 2,
            "n_heads": H,
            "max_seq_len": 64,
        },
    ),
    _decoder("llama", "LlamaModel", _GROUPED + "; rotary positions", num_key_value_heads=2),
    _decoder(
        "llama-padded",
        "LlamaModel",
        _GROUPED + "; rotary positions",
        padded=True,
        num_key_value_heads=2,
    ),
    _decoder(
        "llama-eager", "LlamaModel", _SELF + "; rotary positions", attn_implementation="eager"
    ),
    _decoder(
        "mistral-window",
        "MistralModel",
        _GROUPED + "; a window of 8, so not purely causal",
        causal=0,
        num_key_value_heads=2,
        sliding_window=8,
    ),
    _decoder("qwen2", "Qwen2Model", _GROUPED + "; biases on them", num_key_value_heads=2),
    _decoder(
        "qwen3",
        "Qwen3Model",
        _GROUPED + "; query and key normalised by head",
        num_key_value_heads=2,
        head_dim=16,
    ),
    _decoder(
        "gemma", "GemmaModel", _SELF + "; one key/value head", num_key_value_heads=1, head_dim=16
    ),
    _decoder(
        "gemma2",
        "Gemma2Model",
        _GROUPED
        + "; capped scores; a window of 8 in the first layer; what is not fused cannot be bounded",
        causal=0,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
        attn_implementation="eager",
        unfusable={SOFTCAP: 2},
    ),
    _decoder(
        "gemma3",
        "Gemma3TextModel",
        _GROUPED + "; query and key normalised; a window of 8 in the first layer",
        causal=1,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    _decoder("phi", "PhiModel", _SELF + "; rotary positions on half of the head"),
    _decoder("phi3", "Phi3Model", _PACKED + "; two key/value heads", num_key_value_heads=2),
    _decoder(
        "falcon",
        "FalconModel",
        _PACKED + "; one key/value head",
        multi_query=True,
        new_decoder_architecture=False,
    ),
    _decoder("stablelm", "StableLmModel", _GROUPED, num_key_value_heads=2),
    _decoder("starcoder2", "Starcoder2Model", _GROUPED, num_key_value_heads=2),
    _decoder(
        "gpt-bigcode",
        "GPTBigCodeModel",
        _PACKED + "; one key/value head",
        sizes=_GPT,
        multi_query=True,
    ),
    _decoder("olmo2", "Olmo2Model", _SELF + "; query and key normalised whole, before the heads"),
    _decoder(
        "cohere", "CohereModel", _SELF + "; interleaved rotary positions", num_key_value_heads=4
    ),
    _decoder("granite", "GraniteModel", _GROUPED, num_key_value_heads=2),
    _decoder(
        "smollm3",
        "SmolLM3Model",
        _GROUPED + "; no rotary positions in the second layer",
        num_key_value_heads=2,
        no_rope_layers=[1, 0],
    ),
    _decoder("glm", "GlmModel", _GROUPED, num_key_value_heads=2, head_dim=16),
    _decoder("biogpt", "BioGptModel"),
    _decoder(
        "mixtral",
        "MixtralModel",
        _GROUPED + "; a mixture of four experts",
        num_key_value_heads=2,
        num_local_experts=4,
        experts_implementation="batched_mm",
    ),
    _decoder(
        "qwen3-moe",
        "Qwen3MoeModel",
        _GROUPED + "; a mixture of four experts",
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=D,
        experts_implementation="batched_mm",
    ),
    _decoder(
        "gpt-oss",
        "GptOssModel",
        _GROUPED + "; a sink beside the keys takes part of every row, so no kernel knows it",
        causal=0,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        experts_implementation="batched_mm",
        attn_implementation="eager",
        unfusable={SINKS: 2},
    ),
)
