"""The weights of transformers' own classes in our language model give the same logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attnport.errors import ModuleError
from attnport.models.cached_attention import CachedSelfAttention
from attnport.models.spec import seeded
from attnport.models.transformers_weights import from_transformers

VOCABULARY, TOKENS, BATCH = 50, 9, 2


def llama(**changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, **changes,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def gpt2(**changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "bos_token_id": 0, "eos_token_id": 0, **changes,
    }  # fmt: skip
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: llama(),
    "Llama, tied": lambda: llama(tie_word_embeddings=True),
    "Llama, another theta": lambda: llama(rope_parameters={"rope_theta": 500.0}),
    "Llama, biased": lambda: llama(attention_bias=True, mlp_bias=True),
    "GPT-2": lambda: gpt2(),
    "GPT-2, wider": lambda: gpt2(n_inner=96),
}


@pytest.mark.parametrize("static", [False, True], ids=["concat", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_the_logits_are_those_of_the_model(name: str, static: bool) -> None:
    theirs = seeded(MODELS[name]).eval()
    for parameter in theirs.parameters():  # biases and norms that are 0 and 1 show nothing
        parameter.data += 0.1 * torch.randn_like(parameter)
    ours = from_transformers(theirs, static=static)
    ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
    length = TOKENS + 3 if static else TOKENS
    attention = ours.blocks[0].get_submodule("attention")
    assert isinstance(attention, CachedSelfAttention)
    shape = (BATCH, attention.kv_heads, length if static else 0, attention.head_size)
    where = [torch.zeros(BATCH, dtype=torch.int64)] if static else []
    with torch.no_grad():
        wanted = theirs(ids).logits
        found = ours(
            ids,
            torch.arange(TOKENS).expand(BATCH, TOKENS),
            torch.ones(BATCH, TOKENS, length, dtype=torch.bool).tril(),
            *where,
            *[torch.zeros(shape)] * 4,
        )[0]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: nn.Linear(2, 2), "Linear cannot be loaded .* LlamaForCausalLM, GPT2LMHeadModel"),
        (lambda: llama(hidden_act="gelu"), "this Llama has hidden_act='gelu'"),
        (lambda: llama(head_dim=16), "this Llama has head_dim=16"),
        (lambda: gpt2(activation_function="relu"), "this GPT-2 has activation_function='relu'"),
    ],
)
def test_what_it_does_not_compute_is_refused(make: Callable[[], nn.Module], part: str) -> None:
    with pytest.raises(ModuleError, match=part):
        from_transformers(make())
