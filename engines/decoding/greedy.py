"""Greedy generation: the likeliest token each time, for a batch of prompts of different lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnport.engines.decoding.caches import Copied
from attnport.engines.decoding.session import DecodingSession
from attnport.errors import GraphError, InputError, UsageError
from attnport.export.arrays import numpy_dtype

# What is called with the logits (B,V) that tokens are chosen by.
Saw = Callable[[np.ndarray], object]


@dataclass(frozen=True)
class Generation:
    """What was generated, and what it took.

    Attributes:
        tokens: For each prompt the ids behind it.
        prefill_seconds: Wall time of the prompts, together.
        step_seconds: Wall time of each step behind them, choosing tokens included.
        prefill_copied: Bytes that the prompts moved.
        step_copied: Bytes that each step moved.
        full: Whether generation ended because the caches were full.
    """

    tokens: tuple[tuple[int, ...], ...]
    prefill_seconds: float
    step_seconds: tuple[float, ...]
    prefill_copied: Copied
    step_copied: tuple[Copied, ...]
    full: bool = False

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all sequences in a second of decoding; None without a step."""
        seconds = sum(self.step_seconds)
        return len(self.tokens) * len(self.step_seconds) / seconds if seconds else None


def generate(
    session: DecodingSession,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    capacity: int | None = None,
    side: Literal["left", "right"] = "left",
    saw: Saw | None = None,
) -> Generation:
    """Continues every prompt by the token of the largest logit, the lowest id among equals.

    Args:
        session: It is started anew.
        prompts: Ids, at least one for each.
        tokens: How many to generate for each; fewer where the caches are full.
        capacity: Of static caches, where the bundle leaves it open.
        side: Where shorter prompts are padded.
        saw: Called with the logits (B,V) that each token is chosen by.

    Raises:
        UsageError: If the bundle gives no logits of token ids, or there is nothing to do.
        InputError: If a prompt is empty, does not fit, or holds an id that there is none of.
        GraphError: If the engine fails, or gives logits that are not finite.
    """
    if not session.layout.has_vocabulary:
        raise UsageError(
            f"input {session.layout.tokens.name!r} takes activations, and not token ids, so there "
            "is no next token: generate with a language model, such as decoder-lm"
        )
    if tokens < 1 or not prompts:
        raise UsageError(f"{tokens} tokens for {len(prompts)} prompts: give 1 or more of both")
    ids, valid = pad(prompts, side)
    ids = ids.astype(numpy_dtype(session.layout.tokens.dtype))
    session.start(len(prompts), capacity=capacity)
    start = time.perf_counter()
    first = _choose(_prefill(session, ids, valid), saw)
    prefill_seconds, prefill_copied = time.perf_counter() - start, session.copied_in_all
    chosen, seconds, copied = _decode(session, first, tokens, saw)
    return Generation(
        tokens=tuple(tuple(int(one) for one in row) for row in np.stack(chosen, axis=1)),
        prefill_seconds=prefill_seconds,
        step_seconds=tuple(seconds),
        prefill_copied=prefill_copied,
        step_copied=tuple(copied),
        full=len(chosen) < tokens,
    )


def _decode(
    session: DecodingSession, first: np.ndarray, tokens: int, saw: Saw | None
) -> tuple[list[np.ndarray], list[float], list[Copied]]:
    """One token a step, until there are enough or the caches are full; each step's time and bytes."""
    kind = numpy_dtype(session.layout.tokens.dtype)
    chosen, seconds, copied = [first], [], []
    while len(chosen) < tokens and session.room > 0:
        start = time.perf_counter()
        logits = session.feed(chosen[-1][:, None].astype(kind))[:, -1]
        chosen.append(_choose(logits, saw))
        seconds.append(time.perf_counter() - start)
        copied.append(session.copied)
    return chosen, seconds, copied


def pad(
    prompts: Sequence[Sequence[int]], side: Literal["left", "right"]
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts of one width: ids (B,N), and which of them are not padding.

    >>> pad([[5], [6, 7]], "left")[1].tolist()
    [[False, True], [True, True]]

    Raises:
        InputError: If a prompt is empty.
    """
    width = max(map(len, prompts))
    ids = np.zeros((len(prompts), width), np.int64)
    valid = np.zeros(ids.shape, bool)
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {row} is empty: give at least one token id")
        place = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[row, place], valid[row, place] = prompt, True
    return ids, valid


def _prefill(session: DecodingSession, ids: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Feeds the prompts in chunks that the bundle takes; the logits of each one's last token."""
    most = session.layout.most_new()
    last = ids.shape[1] - 1 - np.argmax(valid[:, ::-1], axis=1)  # (B,)
    found: dict[int, np.ndarray] = {}
    for begin in range(0, ids.shape[1], most):
        part = slice(begin, begin + most)
        logits = session.feed(ids[:, part], valid[:, part])
        for row, place in enumerate(last - begin):
            if 0 <= place < logits.shape[1]:
                found[row] = logits[row, place]
    return np.stack([found[row] for row in range(len(ids))])


def _choose(logits: np.ndarray, saw: Saw | None) -> np.ndarray:
    if not np.isfinite(logits.max(axis=-1)).all():
        raise GraphError(
            "a step gave logits that are not finite, so there is no likeliest token: "
            "`attnport validate BUNDLE` finds where they come from; float16 may overflow"
        )
    if saw is not None:
        saw(logits)
    chosen: np.ndarray = np.argmax(logits, axis=-1)
    return chosen
