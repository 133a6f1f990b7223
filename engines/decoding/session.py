"""Token by token: feeds steps to an engine whose caches stay where they are.

with open_decoding(bundle, "ort-cpu") as session:
    session.start(batch=2)
    logits = session.feed(prompts, valid)      # (B,N,V): prefill, padded left or right
    logits = session.feed(next_tokens)         # (B,1,V): one token each
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from attnport.engines.decoding.caches import CacheStore, Copied, check_past, empty_past
from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.decoding.visibility import Held, Step
from attnport.engines.decoding.words import feeds_of, require_fixed, require_tokens
from attnport.errors import InputError, UsageError


class DecodingSession:
    """One batch of sequences that grow, and the caches of one engine.

    Not for several threads at a time: a step begins where the last one ended.

    Args:
        layout: The parts of the graph.
        store: What runs it and keeps its caches; closed with this session.

    Attributes:
        layout: As given.
        copied: Bytes that the last step moved.
        copied_in_all: Bytes that every step since `start` moved, together.
        steps: How many steps there were.
    """

    def __init__(self, layout: DecodingLayout, store: CacheStore) -> None:
        self.layout, self._store = layout, store
        self.copied = self.copied_in_all = Copied()
        self.steps = 0
        self._held: Held | None = None

    @property
    def kind(self) -> str:
        """The engine's kind, such as "ort-cpu"."""
        return self._store.kind

    @property
    def keeps(self) -> str:
        """How caches pass from step to step, in words."""
        return self._store.keeps

    @property
    def store(self) -> CacheStore:
        return self._store

    @property
    def room(self) -> int:
        """How many more tokens every sequence can take, one at a time."""
        held = self._started()
        return self.layout.most_before(1, held.capacity) + 1 - held.tokens

    def start(
        self,
        batch: int,
        *,
        capacity: int | None = None,
        fixed: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Begins with empty caches.

        Args:
            batch: B.
            capacity: M, where the bundle has static caches and leaves it open; the most by default.
            fixed: What stays the same in all steps, by input.

        Raises:
            InputError: If one of them does not fit the bundle.
        """
        room = self._capacity(capacity)
        self._require_batch(batch)
        past = empty_past(self.layout, batch, room)
        require_fixed(self.layout, fixed or {})
        self._begin(Held(batch, room), past, fixed or {})

    def resume(
        self,
        past: Mapping[str, np.ndarray],
        real: np.ndarray,
        *,
        fixed: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Begins with caches of an earlier session, as `read_caches` gives them.

        Args:
            past: An array for each cache's input.
            real: Which columns hold tokens, and not padding or nothing, (B,P) or (B,M).
            fixed: What stays the same in all steps, by input.

        Raises:
            InputError: If an array is of another dtype, batch or length.
        """
        if real.ndim != 2 or real.dtype != bool:
            raise InputError(
                f"the columns that hold tokens are {real.dtype} {real.shape}: give a bool for each "
                "sequence and column, (B,P)"
            )
        batch, rows = real.shape
        self._require_batch(batch)
        capacity = rows if self.layout.kind == "static" else None
        check_past(self.layout, past, batch, self._capacity(rows) or rows)
        held = Held(batch, capacity)
        held.real = real.copy()
        held.position = real.sum(axis=1).astype(np.int64)
        behind = np.argmax(real[:, ::-1], axis=1)
        ends = np.where(real.any(axis=1), rows - behind, 0) if capacity else np.full(batch, rows)
        held.ends = ends.astype(np.int64)
        require_fixed(self.layout, fixed or {})
        self._begin(held, past, fixed or {})

    def feed(self, tokens: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """Runs the next tokens of every sequence.

        Args:
            tokens: Ids (B,N), or activations (B,N,D), in the graph's dtype.
            valid: False where a token is padding, (B,N); none is by default. A sequence may be
                padded left, right or in the middle, and any token may stand there.

        Returns:
            (B,N,V) or (B,N,D); what stands at padding means nothing.

        Raises:
            InputError: If tokens, positions or sizes do not fit; the caches are as before then.
            GraphError: If the engine fails.
        """
        held = self._started()
        valid = np.ones(tokens.shape[:2], bool) if valid is None else valid
        require_tokens(self.layout, tokens, valid, len(held.position))
        self._require_room(held, tokens.shape[1])
        step = Step(held, valid)
        self._require_positions(step.positions)
        result, self.copied = self._store.step(feeds_of(self.layout, tokens, step))
        step.commit()
        self.copied_in_all += self.copied
        self.steps += 1
        return result

    def read_caches(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Copies of the caches, and which of their columns hold tokens: what `resume` takes."""
        held = self._started()
        return self._store.read(), held.real.copy()

    def close(self) -> None:
        """Frees the caches and the engine."""
        self._held = None
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(
        self, held: Held, past: Mapping[str, np.ndarray], fixed: Mapping[str, np.ndarray]
    ) -> None:
        self._store.start(past, fixed)
        self._held = held
        self.copied = self.copied_in_all = Copied()
        self.steps = 0

    def _started(self) -> Held:
        if self._held is None:
            raise UsageError("the session was not started: call start(batch) first")
        return self._held

    def _capacity(self, asked: int | None) -> int | None:
        """The rows of static caches; None for growing ones."""
        if self.layout.kind == "concat":
            return None
        cache = self.layout.caches[0]
        dim = cache.input.shape[cache.axis]
        if isinstance(dim, int):
            if asked not in (None, dim):
                raise InputError(f"the caches have {dim} rows, and {asked} were asked for")
            return dim
        axis = self.layout.axes[dim]
        if asked is not None and asked not in axis:
            raise InputError(
                f"a capacity of {asked} was asked for, and the bundle takes {axis.min} to {axis.max}"
            )
        return axis.max if asked is None else asked

    def _require_batch(self, batch: int) -> None:
        dim = self.layout.tokens.shape[0]
        fits = batch == dim if isinstance(dim, int) else batch in self.layout.axes[dim]
        if not fits:
            axis = None if isinstance(dim, int) else self.layout.axes[dim]
            known = f"{dim}" if axis is None else f"{axis.min} to {axis.max}"
            raise InputError(f"a batch of {batch} was given, and the bundle takes {known}")

    def _require_room(self, held: Held, new: int) -> None:
        most = self.layout.most_before(new, held.capacity)
        if held.tokens > most:
            raise InputError(
                f"the cache is full: it holds {held.tokens} tokens, and {new} more fit behind {most} "
                "at most; end the sequence, or export with a larger range"
            )

    def _require_positions(self, positions: np.ndarray) -> None:
        spec = self.layout.positions
        most = int(positions.max(initial=0))
        if spec is not None and spec.high is not None and most >= spec.high:
            raise InputError(
                f"a token would be at position {most}, and the model has {spec.high} positions, 0 "
                f"to {spec.high - 1}: end the sequence, or export a model with more"
            )
