"""Prefill, then one token or a chunk at a time, gives what the whole sequence gives at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attnport.errors import ModuleError
from attnport.models.attention import MaskedMultiHeadSelfAttention
from attnport.models.blocks import DecoderBlock
from attnport.models.cached_attention import CachedSelfAttention
from attnport.models.cached_decoder import CachedDecoderBlock
from attnport.models.cached_inputs import WithCaches
from attnport.models.cached_stack import CachedStack
from attnport.models.decoder_lm import DecoderLM
from attnport.models.spec import seeded

BATCH, TOKENS, WIDTH, HEADS, LAYERS, LENGTH = 2, 7, 16, 4, 2, 9
# Token by token, in chunks, and a prefill with steps behind it.
STEPS = ([1] * 7, [3, 2, 2], [5, 1, 1], [7])
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "rotary": {"rotary": True, "theta": 500.0},
}


def stack(*, static: bool = False, **options: Any) -> CachedStack:
    made = seeded(lambda: CachedStack(WIDTH, HEADS, LAYERS, static=static, **options))
    return made.double().eval()


def causal(past: int, new: int, *, keys: int) -> Tensor:
    """(B,N,T): what each new token sees, of keys that may be longer than what is written."""
    return torch.ones(BATCH, new, keys, dtype=torch.bool).tril(past)


def empty(module: WithCaches, kv_heads: int, size: int, *, static: bool) -> list[Tensor]:
    count = sum("key" in name or "value" in name for name in module.input_names)
    return [torch.zeros(BATCH, kv_heads, LENGTH if static else 0, size).double()] * count


def decoded(
    module: WithCaches, rows: Tensor, steps: Sequence[int], caches: list[Tensor]
) -> list[Tensor]:
    """The first output of every token, and the last caches, taking so many tokens at a time."""
    found, at = [], 0
    static = "write_at" in module.input_names
    for new in steps:
        given = {
            module.input_names[0]: rows[:, at : at + new],
            "positions": torch.arange(at, at + new).expand(BATCH, new),
            "mask": causal(at, new, keys=LENGTH if static else at + new),
            "write_at": torch.full((BATCH,), at),
        }
        given |= dict(zip(module.input_names[-len(caches) :], caches, strict=True))
        output, *caches = module(*(given[name] for name in module.input_names))
        found.append(output)
        at += new
    return [torch.cat(found, 1), *caches]


@pytest.mark.parametrize("static", [False, True], ids=["concat", "static"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_any_way_of_taking_the_tokens_gives_the_same(form: str, static: bool, kind: str) -> None:
    module = stack(static=static, **FORMS[form])
    for part in module.attentions:
        setattr(part, "attention_form", kind)  # noqa: B010 - a Module to mypy
    kv_heads = int(FORMS[form].get("kv_heads", HEADS))
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    caches = empty(module, kv_heads, WIDTH // HEADS, static=static)
    ways = [decoded(module, x, steps, list(caches)) for steps in STEPS]
    for way in ways[:-1]:
        for found, whole in zip(way, ways[-1], strict=True):
            torch.testing.assert_close(found, whole)


def test_without_a_past_it_is_the_masked_attention() -> None:
    cached = CachedSelfAttention(WIDTH, HEADS, bias=True).double()
    plain = MaskedMultiHeadSelfAttention(WIDTH, HEADS, bias=True).double()
    plain.load_state_dict(cached.state_dict())
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    none = torch.zeros(BATCH, HEADS, 0, WIDTH // HEADS, dtype=torch.float64)
    found, keys, _ = cached(x, causal(0, TOKENS, keys=TOKENS), (none, none))
    torch.testing.assert_close(found, plain(x))
    assert keys.shape == (BATCH, HEADS, TOKENS, WIDTH // HEADS)


def test_left_padding_gives_what_the_shorter_sequence_gives() -> None:
    module = stack(rotary=True)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    none = empty(module, HEADS, WIDTH // HEADS, static=False)
    pad = 3
    mask = causal(0, TOKENS, keys=TOKENS)
    mask[:, :, :pad] = False  # the first rows are dead: they see nothing
    positions = (torch.arange(TOKENS) - pad).clamp(min=0).expand(BATCH, TOKENS)
    padded = module(x, positions, mask, *none)[0]
    short = decoded(module, x[:, pad:], [TOKENS - pad], none)[0]
    torch.testing.assert_close(padded[:, pad:], short)
    torch.testing.assert_close(padded[:, :pad], x[:, :pad])  # attention added nothing


def test_rows_of_a_batch_are_written_where_each_stands() -> None:
    module = stack(static=True)
    x = torch.randn(BATCH, 1, WIDTH, dtype=torch.float64)
    caches = [torch.randn_like(c) for c in empty(module, HEADS, WIDTH // HEADS, static=True)]
    at = torch.tensor([2, LENGTH - 1])
    mask = torch.arange(LENGTH) <= at[:, None, None]
    _, updated, *_ = module(x, mask, at, *caches)
    changed = (updated != caches[0]).any(-1).any(1)  # (B,M)
    assert changed.tolist() == [[n == place for n in range(LENGTH)] for place in at.tolist()]


def test_rotary_angles_depend_on_distance_alone() -> None:
    module = stack(rotary=True)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    none = empty(module, HEADS, WIDTH // HEADS, static=False)
    mask = causal(0, TOKENS, keys=TOKENS)
    positions = torch.arange(TOKENS).expand(BATCH, TOKENS)
    found = [module(x, positions + start, mask, *none)[0] for start in (0, 1000)]
    torch.testing.assert_close(*found)
    assert not torch.allclose(found[0], module(x, positions * 2, mask, *none)[0])


@pytest.mark.parametrize("static", [False, True], ids=["concat", "static"])
def test_the_decoder_block_is_the_decoders_with_keys_and_values_given(static: bool) -> None:
    plain = seeded(lambda: DecoderBlock(WIDTH, HEADS, norm_first=True)).double().eval()
    cached = CachedDecoderBlock(WIDTH, HEADS, bias=True, static=static).double().eval()
    weights = plain.state_dict()
    renamed = {}
    for i, part in enumerate(("self_attention", "cross_attention", "feed_forward")):
        for kind in ("weight", "bias"):
            renamed[f"norms.{i}.{kind}"] = weights[f"{part}_residual.norm.{kind}"]
    for name, tensor in weights.items():
        if "residual" not in name:
            once = name.startswith(("cross_attention.W_K", "cross_attention.W_V"))
            renamed[name.replace("cross_attention", "cross_keys_values") if once else name] = (
                tensor
            )
    cached.load_state_dict(renamed)
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    memory = torch.randn(BATCH, 5, WIDTH, dtype=torch.float64)
    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None]
    wanted = plain(x, memory, padding)
    cross = cached.cross_keys_values(memory)
    caches = empty(cached, HEADS, WIDTH // HEADS, static=static)[:2]
    found, at = [], 0
    for new in (4, 1, 2):
        mask = causal(at, new, keys=LENGTH if static else at + new)
        where = [torch.full((BATCH,), at)] if static else []
        rows = x[:, at : at + new]
        output, *caches = cached(rows, mask, padding, *cross, *where, *caches)
        found.append(output)
        at += new
    torch.testing.assert_close(torch.cat(found, 1), wanted)


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_decodes_as_it_reads(tied: bool) -> None:
    model = seeded(lambda: DecoderLM(WIDTH, HEADS, LAYERS, vocab_size=11, tied=tied, kv_heads=2))
    model = model.double().eval()
    ids = torch.randint(0, 11, (BATCH, TOKENS))
    none = empty(model, 2, WIDTH // HEADS, static=False)
    ways = [decoded(model, ids, steps, list(none)) for steps in STEPS]
    for way in ways[:-1]:
        torch.testing.assert_close(way[0], ways[-1][0])
    assert (model.head.weight is model.embedding.weight) is tied


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ModuleError, match="num_heads=4 is not divisible by kv_heads=3"):
        CachedSelfAttention(WIDTH, HEADS, kv_heads=3)
    with pytest.raises(ModuleError, match="head size is 5"):
        CachedStack(20, 4, rotary=True)
    with pytest.raises(ModuleError, match=r"takes 6 inputs \(x, mask, past_key_0.*and 2 were"):
        stack()(torch.zeros(1, 1, WIDTH), torch.ones(1, 1, 1))
    x, none = torch.zeros(1, 1, WIDTH), torch.zeros(1, HEADS, 0, WIDTH // HEADS)
    with pytest.raises(ModuleError, match="mask has shape"):
        CachedSelfAttention(WIDTH, HEADS)(x, torch.ones(1, 1, 3, dtype=torch.bool), (none, none))
    with pytest.raises(ModuleError, match="no option 'norms': it has kv_heads"):
        DecoderLM(WIDTH, HEADS, norms="rms")
    with pytest.raises(ModuleError, match="norm='batch' is not one of layer, rms"):
        DecoderLM(WIDTH, HEADS, norm="batch")
