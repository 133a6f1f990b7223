"""Masks, in one convention everywhere: True where a key is visible.

Dimension letters: B batch, N query tokens, T key tokens.

A mask from here goes into the `mask` argument of the attention modules as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from attnport.errors import UsageError

Lengths = Tensor | Sequence[int]


def causal_mask(n: int, t: int | None = None) -> Tensor:
    """Query i sees the keys up to its own position.

    Args:
        n: N, the number of queries.
        t: T, the number of keys; N if not given. With T > N the queries are the last N of the T
            positions, as when they follow T - N cached tokens.

    Returns:
        (N,T) bool.

    Raises:
        UsageError: If T < N: the first queries would come before every key.

    >>> causal_mask(2, 3).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    t = n if t is None else t
    if t < n:
        raise UsageError(f"causal_mask got n={n} queries and t={t} keys: give t >= n")
    return torch.ones(n, t, dtype=torch.bool).tril(t - n)


def key_padding_mask(lengths: Lengths, t: int, side: Literal["left", "right"] = "right") -> Tensor:
    """Hides the padding of sequences that have been padded to one length.

    Args:
        lengths: (B,), how many tokens of each sequence are real; 0 is allowed.
        t: T, the padded length.
        side: Where the padding stands.

    Returns:
        (B,1,1,T) bool, on the device of `lengths`.

    Raises:
        UsageError: If a length is outside 0..T, `lengths` is not (B,), or the side is unknown.

    >>> key_padding_mask([1, 3], 3)[:, 0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    real = _checked_lengths(lengths, t)[:, None]  # (B,1)
    position = torch.arange(t, device=real.device)  # (T,)
    if side == "right":
        visible = position < real  # (B,T)
    elif side == "left":
        visible = position >= t - real  # (B,T)
    else:
        raise UsageError(f"padding side {side!r} is unknown: give 'left' or 'right'")
    return visible[:, None, None, :]  # (B,1,1,T)


def causal_padding_mask(
    lengths: Lengths, n: int, side: Literal["left", "right"] = "right"
) -> Tensor:
    """Causal and key padding together, for self-attention over padded sequences.

    Args:
        lengths: (B,), how many tokens of each sequence are real.
        n: N, the padded length.
        side: Where the padding stands. On the left, the padded queries see no key at all.

    Returns:
        (B,1,N,N) bool, on the device of `lengths`.

    Raises:
        UsageError: As `key_padding_mask`.
    """
    padding = key_padding_mask(lengths, n, side)  # (B,1,1,N)
    return padding & causal_mask(n).to(padding.device)  # (B,1,N,N)


def _checked_lengths(lengths: Lengths, t: int) -> Tensor:
    real = torch.as_tensor(lengths)
    if real.dim() != 1 or real.is_floating_point() or real.dtype == torch.bool:
        raise UsageError(
            f"lengths have shape {tuple(real.shape)} and dtype {real.dtype}: "
            "give one whole number for each sequence, such as [5, 3]"
        )
    outside = real[(real < 0) | (real > t)]
    if outside.numel():
        raise UsageError(
            f"length {int(outside[0])} does not fit a padded length of {t}: give lengths in 0..{t}"
        )
    return real
