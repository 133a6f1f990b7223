from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnport.errors import UsageError
from attnport.models.attention import MaskedMultiHeadSelfAttention, MultiHeadSelfAttention
from attnport.models.masks import causal_mask, causal_padding_mask, key_padding_mask


def rows(mask: Tensor) -> list[list[int]]:
    assert mask.dtype == torch.bool
    values: list[list[int]] = mask.int().tolist()
    return values


def test_causal_mask_sees_up_to_the_own_position() -> None:
    assert rows(causal_mask(3)) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_causal_mask_with_more_keys_counts_from_the_end() -> None:
    assert rows(causal_mask(2, 4)) == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert torch.equal(causal_mask(2, 4), causal_mask(4)[-2:])


def test_key_padding_on_either_side() -> None:
    lengths = torch.tensor([2, 0, 3])
    right, left = key_padding_mask(lengths, 3), key_padding_mask(lengths, 3, side="left")
    assert right.shape == left.shape == (3, 1, 1, 3)
    assert rows(right[:, 0, 0]) == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert rows(left[:, 0, 0]) == [[0, 1, 1], [0, 0, 0], [1, 1, 1]]


def test_both_together() -> None:
    mask = causal_padding_mask([2, 3], 3)
    assert mask.shape == (2, 1, 3, 3)
    assert rows(mask[0, 0]) == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert rows(mask[1, 0]) == rows(causal_mask(3))


def test_the_masks_mean_to_the_modules_what_they_say() -> None:
    causal, plain = MaskedMultiHeadSelfAttention(8, 2), MultiHeadSelfAttention(8, 2)
    plain.load_state_dict(causal.state_dict())
    x = torch.randn(2, 4, 8)
    lengths = [2, 4]
    padded = causal(x, key_padding_mask(lengths, 4, side="left"))
    assert torch.equal(plain(x, causal_padding_mask(lengths, 4, side="left")), padded)


@pytest.mark.parametrize(
    ("lengths", "part"),
    [([5], "length 5"), ([-1], "length -1"), ([[1]], "one whole number"), ([1.5], "float")],
)
def test_lengths_that_do_not_fit_are_refused(lengths: list[int], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        key_padding_mask(lengths, 4)


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="give t >= n"):
        causal_mask(3, 2)
    with pytest.raises(UsageError, match="'left' or 'right'"):
        key_padding_mask([1], 2, side="middle")  # type: ignore[arg-type]
