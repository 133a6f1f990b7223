"""What the specification promises of the attention modules besides their numbers."""

from __future__ import annotations

import math

import pytest
import torch

from attnport.errors import ModuleError
from attnport.models.attention import (
    AttentionForm,
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
    SingleHeadSelfAttention,
)

B, N, T, D, H = 2, 5, 7, 16, 4
FORMS: list[AttentionForm] = ["eager", "sdpa"]


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_four_square_matrices_whatever_the_heads(num_heads: int) -> None:
    module = MultiHeadSelfAttention(D, num_heads)
    assert sum(p.numel() for p in module.parameters()) == 4 * D * D
    single = SingleHeadSelfAttention(D)
    assert {name: p.shape for name, p in single.named_parameters()} == {
        f"W_{letter}.weight": (D, D) for letter in "QKVO"
    }


@pytest.mark.parametrize("form", FORMS)
def test_nothing_leaks_from_the_future(form: AttentionForm) -> None:
    module = MaskedMultiHeadSelfAttention(D, H).eval()
    module.attention_form = form
    x = torch.randn(B, N, D)
    before = module(x)
    for j in range(N):
        changed = x.clone()
        changed[:, j] += 100
        after = module(changed)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dead_rows_give_the_output_bias(
    form: AttentionForm, bias: bool, dtype: torch.dtype
) -> None:
    module = CrossAttention(D, H, bias).to(dtype)
    module.attention_form = form
    x, memory = torch.randn(B, N, D, dtype=dtype), torch.randn(B, T, D, dtype=dtype)
    wanted = module.W_O(torch.zeros(1, D, dtype=dtype))[0]
    alive = torch.arange(N) != 2
    hiding = {
        "mask": alive[:, None].expand(N, T),
        "bias": torch.zeros(N, T, dtype=dtype).masked_fill(~alive[:, None], -math.inf),
    }
    for name, value in hiding.items():
        output = module(x, memory, **{name: value})
        assert torch.isfinite(output).all()
        assert (output[:, 2] == wanted).all()
        assert (output[:, alive] != wanted).any(-1).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_padded_first_token_is_a_dead_row_of_causal_attention(form: AttentionForm) -> None:
    module = MaskedMultiHeadSelfAttention(D, H)
    module.attention_form = form
    output = module(torch.randn(B, N, D), torch.tensor([0, 0, 1, 1, 1]))
    assert (output[:, :2] == 0).all()
    assert (output[:, 2:] != 0).any(-1).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_finite_sentinel_is_arithmetic_not_hiding(form: AttentionForm) -> None:
    module = MultiHeadSelfAttention(D, H).double()
    module.attention_form = form
    x = torch.randn(B, N, D, dtype=torch.float64)
    eps = torch.finfo(x.dtype).eps

    # A shift of a whole row cancels in the softmax, up to the scores' rounding at the shift.
    shifted = module(x, bias=torch.full((N, N), -10000.0, dtype=x.dtype))
    assert (shifted - module(x)).abs().max() <= 10000 * N * eps

    # finfo.min swallows the scores, so every key weighs the same.
    lowest = module(x, bias=torch.full((N, N), torch.finfo(x.dtype).min, dtype=x.dtype))
    uniform = module.W_O(module.W_V(x).mean(1, keepdim=True)).expand_as(x)
    assert (lowest - uniform).abs().max() <= 4 * D * eps


def test_a_float_mask_is_never_taken_as_additive() -> None:
    module = MultiHeadSelfAttention(D, H)
    x = torch.randn(B, N, D)
    visible = torch.randn(N, N).sign()  # -1 and 1: neither is 0, so nothing is hidden
    assert torch.equal(module(x, visible), module(x, torch.ones(N, N)))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ModuleError, match=r"d_model=16 is not divisible by num_heads=5.*4 or 8"):
        MultiHeadSelfAttention(D, 5)
    with pytest.raises(ModuleError, match=r"d_model=16 .* num_heads=17.*num_heads=16,"):
        CrossAttention(D, 17)
    with pytest.raises(ModuleError, match="must be 1 or more"):
        MaskedMultiHeadSelfAttention(D, 0)


@pytest.mark.parametrize(
    "shape", [(B, N, T), (T, N), (N, N), (H, B, N, T), (1, B, H, N, T), (B, 1, 1, T + 1)], ids=str
)
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_what_does_not_broadcast_is_refused_with_both_shapes(
    name: str, shape: tuple[int, ...]
) -> None:
    module = CrossAttention(D, H)
    x, memory = torch.randn(B, N, D), torch.randn(B, T, D)
    with pytest.raises(ModuleError) as caught:
        module(x, memory, **{name: torch.ones(shape)})
    for part in (f"{name} has shape {shape}", str((B, H, N, T))):
        assert part in str(caught.value)


def test_a_mask_given_as_bias_is_refused() -> None:
    with pytest.raises(ModuleError, match=r"bias is torch.bool .* go into mask"):
        MultiHeadSelfAttention(D, H)(torch.randn(B, N, D), bias=torch.ones(N, N).bool())
