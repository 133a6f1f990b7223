"""Runs sequences through a session in every way that must give the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from attnport.engines.decoding.session import DecodingSession

Side = Literal["left", "right"]


def padded(
    ids: np.ndarray, lengths: Sequence[int], side: Side, width: int, filler: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """The first tokens of every row, padded to one width: (B,N) ids and what of them is valid."""
    tokens = np.full((len(ids), width), filler, ids.dtype)
    valid = np.zeros(tokens.shape, bool)
    for row, length in enumerate(lengths):
        place = slice(width - length, width) if side == "left" else slice(0, length)
        tokens[row, place], valid[row, place] = ids[row, :length], True
    return tokens, valid


def logits_by_steps(
    session: DecodingSession, ids: np.ndarray, lengths: Sequence[int], side: Side, steps: int
) -> np.ndarray:
    """Prefill padded to one width, then one token at a time; NaN where nothing was asked.

    Args:
        session: Started anew here.
        ids: (B,S).
        lengths: How many tokens of each row are prefilled.
        side: Where the padding stands.
        steps: How many tokens follow.

    Returns:
        (B,S,V): each logit at the place of its token in its row.
    """
    session.start(len(ids))
    tokens, valid = padded(ids, lengths, side, max(lengths) + 1)
    first = session.feed(tokens, valid)
    found = np.full((*ids.shape, first.shape[-1]), np.nan)
    for row, length in enumerate(lengths):
        found[row, :length] = first[row][valid[row]]
    for step in range(steps):
        places = [length + step for length in lengths]
        logits = session.feed(np.array([[ids[r, p]] for r, p in enumerate(places)]))
        for row, place in enumerate(places):
            found[row, place] = logits[row, 0]
    return found
