"""Loads the weights of transformers' Llama and GPT-2 into a `DecoderLM`.

Seen with transformers 5; only its modules' structure and configuration are read, and nothing of it
is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from attnport.errors import ModuleError
from attnport.models.decoder_lm import DecoderLM

_PARTS = ("W_Q", "W_K", "W_V")
Weights = dict[str, Tensor]


def from_transformers(model: nn.Module, *, static: bool = False) -> DecoderLM:
    """A `DecoderLM` with the weights of a causal language model.

    Args:
        model: A LlamaForCausalLM or a GPT2LMHeadModel; not changed, its weights are copied.
        static: Whether the caches are of constant length and written in place.

    Returns:
        The same function of token ids, in the model's dtype, in evaluation mode.

    Raises:
        ModuleError: If it is another class, or has an option that `DecoderLM` has not.
    """
    loaders = {"LlamaForCausalLM": _llama, "GPT2LMHeadModel": _gpt2}
    name = type(model).__name__
    if name not in loaders:
        raise ModuleError(
            f"{name} cannot be loaded into a DecoderLM: give one of {', '.join(loaders)}, or "
            "export the model itself, wrapped so that its caches are tensors"
        )
    sizes, weights = loaders[name](model)
    found = DecoderLM(static=static, **sizes)
    first = next(iter(weights.values()))
    found.to(first.dtype).load_state_dict(weights, strict=True)
    return found.eval()


def _llama(model: Any) -> tuple[dict[str, Any], Weights]:
    config = model.config
    rope = dict(
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    _require("Llama", {
        "hidden_act": (config.hidden_act, "silu"),
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "attention_bias": (bool(config.attention_bias), bool(config.mlp_bias)),
        "head_dim": (config.head_dim or config.hidden_size // config.num_attention_heads,
                     config.hidden_size // config.num_attention_heads),
    })  # fmt: skip
    sizes = {
        "d_model": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "tied": _is_tied(model),
        "kv_heads": config.num_key_value_heads,
        "d_ff": config.intermediate_size,
        "rotary": True,
        "theta": float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        "norm": "rms",
        "feed_forward": "gated-silu",
        "bias": bool(config.attention_bias),
        "eps": config.rms_norm_eps,
    }
    renamed = {
        "input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm",
        "self_attn.q_proj": "attention.W_Q", "self_attn.k_proj": "attention.W_K",
        "self_attn.v_proj": "attention.W_V", "self_attn.o_proj": "attention.W_O",
        "mlp.gate_proj": "feed_forward.W_gate", "mlp.up_proj": "feed_forward.W_1",
        "mlp.down_proj": "feed_forward.W_2",
    }  # fmt: skip
    own = model.state_dict()
    weights = _renamed(own, "model.layers.", renamed)
    weights |= {
        "embedding.weight": own["model.embed_tokens.weight"],
        "norm.weight": own["model.norm.weight"],
        "head.weight": model.lm_head.weight.detach(),
    }
    return sizes, weights


def _gpt2(model: Any) -> tuple[dict[str, Any], Weights]:
    config = model.config
    _require("GPT-2", {
        "activation_function": (config.activation_function, "gelu_new"),
        "scale_attn_weights": (config.scale_attn_weights, True),
        "scale_attn_by_inverse_layer_idx": (config.scale_attn_by_inverse_layer_idx, False),
        "add_cross_attention": (config.add_cross_attention, False),
    })  # fmt: skip
    sizes = {
        "d_model": config.n_embd,
        "num_heads": config.n_head,
        "num_layers": config.n_layer,
        "vocab_size": config.vocab_size,
        "max_positions": config.n_positions,
        "tied": _is_tied(model),
        "d_ff": config.n_inner or 4 * config.n_embd,
        "rotary": False,
        "norm": "layer",
        "feed_forward": "gelu-tanh",
        "bias": True,
        "eps": config.layer_norm_epsilon,
    }
    # Its matrices are stored (in, out), and queries, keys and values as one.
    own = {
        name: tensor.T if ".c_" in name and name.endswith("weight") else tensor
        for name, tensor in model.state_dict().items()
    }
    weights = _renamed(own, "transformer.h.", {
        "ln_1": "attention_norm", "ln_2": "feed_forward_norm", "attn.c_proj": "attention.W_O",
        "mlp.c_fc": "feed_forward.W_1", "mlp.c_proj": "feed_forward.W_2",
    })  # fmt: skip
    for layer in range(config.n_layer):
        for kind in ("weight", "bias"):
            whole = own[f"transformer.h.{layer}.attn.c_attn.{kind}"]
            for part, to in zip(whole.chunk(3), _PARTS, strict=True):
                weights[f"blocks.{layer}.attention.{to}.{kind}"] = part
    for kind in ("weight", "bias"):
        weights[f"norm.{kind}"] = own[f"transformer.ln_f.{kind}"]
    weights |= {
        "embedding.weight": own["transformer.wte.weight"],
        "position_embedding.weight": own["transformer.wpe.weight"],
        "head.weight": model.lm_head.weight.detach(),
    }
    return sizes, weights


def _renamed(own: Mapping[str, Tensor], prefix: str, names: Mapping[str, str]) -> Weights:
    """The weights of the layers under the names that they have in `DecoderLM`."""
    found: Weights = {}
    for name, tensor in own.items():
        if not name.startswith(prefix):
            continue
        layer, _, rest = name.removeprefix(prefix).partition(".")
        part, _, kind = rest.rpartition(".")
        if part in names:
            found[f"blocks.{layer}.{names[part]}.{kind}"] = tensor
    return found


def _is_tied(model: Any) -> bool:
    shared: bool = model.lm_head.weight is model.get_input_embeddings().weight
    return shared


def _require(name: str, options: Mapping[str, tuple[object, object]]) -> None:
    for option, (given, wanted) in options.items():
        if given != wanted:
            raise ModuleError(
                f"this {name} has {option}={given!r}, and a DecoderLM computes as with {wanted!r}: "
                "export the model itself, wrapped so that its caches are tensors"
            )
