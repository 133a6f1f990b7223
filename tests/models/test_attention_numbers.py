"""Our modules against textbook classes and torch's own layers, in float64.

Dimension letters: B batch, N tokens, D model width, H heads, K head size.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnport.models.attention import (
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
    SingleHeadSelfAttention,
)
from attnport.models.blocks import DecoderBlock, EncoderBlock
from attnport.models.masks import causal_mask

B, N, T, D, H = 2, 6, 9, 32, 4


class TextbookSingleHead(nn.Module):
    """As tutorials write it, with (B,N,N) scores."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)
        self.W_O = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = torch.bmm(self.W_Q(x), self.W_K(x).transpose(1, 2)) / math.sqrt(self.d_model)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        output: Tensor = self.W_O(torch.bmm(torch.softmax(scores, dim=-1), self.W_V(x)))
        return output


class TextbookMultiHead(nn.Module):
    """As tutorials write it, one head after the other."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)
        self.W_O = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        projected = (
            layer(x).chunk(self.num_heads, -1) for layer in (self.W_Q, self.W_K, self.W_V)
        )
        heads = []
        for q, k, v in zip(*projected, strict=True):
            scores = q @ k.mT / math.sqrt(q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, float("-inf"))
            heads.append(torch.softmax(scores, dim=-1) @ v)
        output: Tensor = self.W_O(torch.cat(heads, dim=-1))
        return output


def assert_equal_up_to_rounding(got: Tensor, wanted: Tensor, terms: int = 4 * D + N) -> None:
    """Both end a chain of sums of `terms` terms, each of which may round at the largest term.

    The largest term is taken as the output's largest element, or 1, the size of the inputs.
    """
    eps = torch.finfo(wanted.dtype).eps
    bound = terms * eps * max(1.0, wanted.abs().max().item())
    assert torch.isfinite(got).all()
    assert (got - wanted).abs().max().item() <= bound


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def double(module: nn.Module) -> nn.Module:
    """In float64, with biases and LayerNorms that are not the trivial ones of a new module."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.double().eval()


MASKS = {
    "none": None,
    "float tril": torch.tril(torch.ones(N, N)),
    "double tril": torch.tril(torch.ones(N, N, dtype=torch.float64)),
    "int tril": torch.tril(torch.ones(N, N, dtype=torch.int64)),
    "uint8 band": torch.ones(N, N, dtype=torch.uint8).tril(1).triu(-2),
    "bool tril": causal_mask(N),
}


@pytest.mark.parametrize("form", ["eager", "sdpa"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_textbook_weights_load_and_give_the_same_numbers(mask: Tensor | None, form: str) -> None:
    x = random(B, N, D)
    for textbook, ours in (
        (TextbookSingleHead(D), SingleHeadSelfAttention(D)),
        (TextbookMultiHead(D, H), MultiHeadSelfAttention(D, H)),
    ):
        ours.load_state_dict(textbook.state_dict())
        ours.attention_form = "eager" if form == "eager" else "sdpa"
        assert_equal_up_to_rounding(double(ours)(x, mask), double(textbook)(x, mask))


def test_causal_is_the_module_with_a_tril_mask() -> None:
    causal, plain = MaskedMultiHeadSelfAttention(D, H), MultiHeadSelfAttention(D, H)
    plain.load_state_dict(causal.state_dict())
    x = random(B, N, D)
    assert_equal_up_to_rounding(double(causal)(x), double(plain)(x, causal_mask(N)))


def visible_to_some(*shape: int) -> Tensor:
    """About half of the keys visible, some rows dead."""
    visible = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.5
    visible[..., 0, :] = False
    return visible


ARGUMENTS = {
    "nothing": (None, None),
    "key padding": (visible_to_some(B, 1, 1, T), None),
    "rows": (visible_to_some(B, 1, N, 1), None),
    "one key row": (torch.ones(T), None),
    "per head": (visible_to_some(B, H, N, T), None),
    "per query": (visible_to_some(N, T).float(), None),
    "finite bias": (None, random(H, N, T)),
    "dead bias": (None, random(1, H, N, T).masked_fill(~visible_to_some(N, T), -math.inf)),
    "mask and bias": (visible_to_some(B, 1, 1, T).int(), random(H, N, T)),
    "dead only together": (
        (torch.arange(T) < 4)[None, :],
        torch.zeros(N, T, dtype=torch.float64).masked_fill(torch.arange(T) < 4, -math.inf),
    ),
}


@pytest.mark.parametrize(("mask", "bias"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_eager_and_sdpa_agree(mask: Tensor | None, bias: Tensor | None) -> None:
    module = CrossAttention(D, H, bias=True)
    double(module)
    x, memory = random(B, N, D), random(B, T, D, seed=2)
    eager = module(x, memory, mask, bias=bias)
    module.attention_form = "sdpa"
    assert_equal_up_to_rounding(module(x, memory, mask, bias=bias), eager)


@pytest.mark.parametrize("side", [slice(0, N - 2), slice(2, N)], ids=["right", "left"])
def test_eager_and_sdpa_agree_when_causal_and_padded(side: slice) -> None:
    module = MaskedMultiHeadSelfAttention(D, H, bias=True)
    double(module)
    mask = torch.zeros(N)
    mask[side] = 1
    x, bias = random(B, N, D), random(H, N, N)
    for added in (None, bias):
        module.attention_form = "eager"
        eager = module(x, mask, bias=added)
        module.attention_form = "sdpa"
        assert_equal_up_to_rounding(module(x, mask, bias=added), eager)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-LN", "pre-LN"])
def test_encoder_block_is_torchs_encoder_layer(norm_first: bool) -> None:
    theirs = double(
        nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True, norm_first=norm_first)
    )
    ours = double(EncoderBlock(D, H, 64, norm_first=norm_first))
    copy_attention(theirs.self_attn, ours.attention)
    copy_rest(theirs, ours, ["attention_residual", "feed_forward_residual"])
    x, visible = random(B, N, D), torch.arange(N) < torch.tensor([[N], [3]])
    wanted = theirs(x, src_key_padding_mask=~visible)
    got = ours(x, visible[:, None, None])
    # torch's layer leaves out padded rows in its fast path
    assert_equal_up_to_rounding(got[visible], wanted[visible], terms=8 * D)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-LN", "pre-LN"])
def test_decoder_block_is_torchs_decoder_layer(norm_first: bool) -> None:
    theirs = double(
        nn.TransformerDecoderLayer(D, H, 64, 0.0, batch_first=True, norm_first=norm_first)
    )
    ours = double(DecoderBlock(D, H, 64, norm_first=norm_first))
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    copy_rest(
        theirs,
        ours,
        ["self_attention_residual", "cross_attention_residual", "feed_forward_residual"],
    )
    x, memory = random(B, N, D), random(B, T, D, seed=2)
    visible = torch.arange(T) < torch.tensor([[T], [3]])
    wanted = theirs(
        x, memory, tgt_mask=~causal_mask(N), memory_key_padding_mask=~visible, tgt_is_causal=True
    )
    got = ours(x, memory, visible[:, None, None])
    assert_equal_up_to_rounding(got, wanted, terms=8 * D)


def copy_attention(theirs: object, ours: object) -> None:
    assert isinstance(theirs, nn.MultiheadAttention)
    assert isinstance(ours, MultiHeadSelfAttention | CrossAttention)
    assert theirs.in_proj_weight is not None
    layers = (ours.W_Q, ours.W_K, ours.W_V)
    with torch.no_grad():
        for layer, weight, bias in zip(
            layers, theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    ours.W_O.load_state_dict(theirs.out_proj.state_dict())


def copy_rest(theirs: nn.Module, ours: nn.Module, residuals: list[str]) -> None:
    for i, name in enumerate(residuals, start=1):
        norm = theirs.get_submodule(f"norm{i}")
        ours.get_submodule(f"{name}.norm").load_state_dict(norm.state_dict())
    for source, target in (("linear1", "W_1"), ("linear2", "W_2")):
        state = theirs.get_submodule(source).state_dict()
        ours.get_submodule(f"feed_forward.{target}").load_state_dict(state)
