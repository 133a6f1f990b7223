"""What roundings are said to do to a result."""

from __future__ import annotations

import pytest
import torch

from attnport.export.rounding import RoundingNoise


def hidden_whole(fill: float) -> torch.Tensor:
    """The weights of a query whose keys all get a number that is meant to hide them."""
    scores = torch.linspace(-1, 1, 9, dtype=torch.float64)
    return scores.masked_fill(torch.ones(9, dtype=torch.bool), fill).softmax(-1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_sentinel_is_not_moved(dtype: str) -> None:
    with RoundingNoise(dtype, seed=0):
        weights = hidden_whole(torch.finfo(torch.float64).min)
    moved = (weights * 9 - 1).abs().max()
    assert moved < 100 * torch.finfo(getattr(torch, dtype)).eps


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_the_dtype_cannot_hold_is_moved(dtype: str) -> None:
    thirds = torch.full((64,), 1 / 3, dtype=torch.float64)
    with RoundingNoise(dtype, seed=0):
        moved, exact = thirds * 1.0, thirds.round() + 0.5
    assert ((moved - thirds).abs() > 0).all()
    assert (exact == 0.5).all()
