"""Ways to the same tokens: in one pass, one by one, in chunks, padded, alone, beside others.

Each way runs whole sequences through a session and says which results it asked for; all of them must
be those of one pass over the sequences without padding.

Letters: B sequences, S tokens of each, N of one step, V what each token gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from attnport.engines.decoding.session import DecodingSession

Fixed = dict[str, np.ndarray]


@dataclass
class Run:
    """One way through one session.

    Attributes:
        session: The session.
        tokens: The sequences, (B,S) or (B,S,D).
        others: As many other tokens, for padding and for neighbours.
        fixed: What stays the same in all steps.
        results: What each token gave, (B,S,V).
        asked: Which of them were asked for, (B,S).
        step_bytes: What each step of one token copied of caches.
    """

    session: DecodingSession
    tokens: np.ndarray
    others: np.ndarray
    fixed: Fixed
    results: np.ndarray | None = None
    asked: np.ndarray = field(init=False)
    step_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked = np.zeros(self.tokens.shape[:2], bool)

    @property
    def batch(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])

    def start(self, rows: Sequence[int]) -> None:
        """Begins with those sequences alone."""
        fixed = {name: array[list(rows)] for name, array in self.fixed.items()}
        self.session.start(len(rows), capacity=self._capacity(), fixed=fixed)

    def feed(self, rows: Sequence[int], tokens: np.ndarray, places: np.ndarray) -> None:
        """Runs one step, cut where the bundle takes fewer tokens.

        Args:
            rows: The sequences that are run.
            tokens: (rows, N).
            places: Where each token stands in its sequence, (rows, N); -1 for padding.
        """
        for part in _parts(tokens.shape[1], self.session.layout.most_new()):
            found = self.session.feed(tokens[:, part], places[:, part] >= 0)
            if found.shape[1] == 1:
                self.step_bytes.append(self.session.copied.caches)
            if self.results is None:
                self.results = np.zeros((*self.tokens.shape[:2], *found.shape[2:]), found.dtype)
            for at, row in enumerate(rows):
                real = places[at, part] >= 0
                self.results[row, places[at, part][real]] = found[at][real]
                self.asked[row, places[at, part][real]] = True

    def feed_straight(self, rows: Sequence[int], begin: int, end: int) -> None:
        """The tokens from one place to another, of every sequence alike."""
        places = np.broadcast_to(np.arange(begin, end), (len(rows), end - begin))
        self.feed(rows, self.tokens[list(rows), begin:end], places)

    def _capacity(self) -> int | None:
        """The rows of a static cache of an open length: room for padding, and for more."""
        layout = self.session.layout
        cache = layout.caches[0]
        dim = cache.input.shape[cache.axis]
        if layout.kind == "concat" or isinstance(dim, int):
            return None
        return layout.axes[dim].max


Way = Callable[[Run], None]


def full(run: Run) -> None:
    """One pass."""
    run.start(range(run.batch))
    run.feed_straight(range(run.batch), 0, run.length)


def token_by_token(run: Run) -> None:
    """Every token a step, from empty caches on."""
    run.start(range(run.batch))
    for place in range(run.length):
        run.feed_straight(range(run.batch), place, place + 1)


def prefill_then_tokens(run: Run) -> None:
    """Half of each sequence at once, the rest one by one."""
    run.start(range(run.batch))
    half = run.length // 2
    run.feed_straight(range(run.batch), 0, half)
    for place in range(half, run.length):
        run.feed_straight(range(run.batch), place, place + 1)


def chunks(run: Run) -> None:
    """In chunks of 3, 1, 4, 2, 5 and again."""
    run.start(range(run.batch))
    begin = 0
    for number in range(run.length):
        end = min(begin + (3, 1, 4, 2, 5)[number % 5], run.length)
        run.feed_straight(range(run.batch), begin, end)
        begin = end
        if begin == run.length:
            return


def padded(side: Literal["left", "right"], *, same: bool, pieces: int = 1) -> Way:
    """Prompts padded to one width, then one token a step.

    Args:
        side: Where padding stands.
        same: Whether all prompts are of one length, and every one is padded.
        pieces: In how many chunks the prompts are fed.
    """

    def way(run: Run) -> None:
        half = run.length // 2
        shorter = half // max(1, run.batch - 1)
        lengths = [half if same else max(1, half - shorter * row) for row in range(run.batch)]
        tokens, places = _pad(run, lengths, side, half + 1)
        rows = range(run.batch)
        run.start(rows)
        for part in _parts(half + 1, -(-(half + 1) // pieces)):
            run.feed(rows, tokens[:, part], places[:, part])
        for step in range(run.length - half):
            at = np.array([[length + step] for length in lengths])
            run.feed(rows, run.tokens[np.arange(run.batch)[:, None], at], at)

    return way


def alone(run: Run) -> None:
    """Each sequence in a batch of its own, in chunks and one by one."""
    half = run.length // 2
    for row in range(run.batch):
        run.start([row])
        run.feed_straight([row], 0, half)
        for place in range(half, run.length):
            run.feed_straight([row], place, place + 1)


def beside_others(run: Run) -> None:
    """The first sequence, while what stands beside it is replaced by other tokens."""
    rows = range(run.batch)
    run.start(rows)
    tokens = run.others.copy()
    tokens[0] = run.tokens[0]
    half = run.length // 2
    ends = [0, *range(half, run.length + 1)]
    for begin, end in pairwise(ends):
        places = np.broadcast_to(np.arange(begin, end), (run.batch, end - begin))
        run.feed(rows, tokens[:, begin:end], places)
    run.asked[1:] = False


WAYS: dict[str, Way] = {
    "full": full,
    "token-by-token": token_by_token,
    "prefill-then-tokens": prefill_then_tokens,
    "chunks": chunks,
    "left-padding": padded("left", same=True),
    "right-padding": padded("right", same=True),
    "lengths-padded-left": padded("left", same=False),
    "lengths-padded-right": padded("right", same=False),
    "chunks-padded-left": padded("left", same=False, pieces=3),
    "chunks-padded-right": padded("right", same=False, pieces=3),
    "alone": alone,
    "beside-others": beside_others,
}


def _pad(
    run: Run, lengths: Sequence[int], side: Literal["left", "right"], width: int
) -> tuple[np.ndarray, np.ndarray]:
    tokens = run.others[:, :width].copy()
    places = np.full((run.batch, width), -1)
    for row, length in enumerate(lengths):
        part = slice(width - length, width) if side == "left" else slice(0, length)
        tokens[row, part], places[row, part] = run.tokens[row, :length], np.arange(length)
    return tokens, places


def _parts(length: int, most: int) -> Iterator[slice]:
    for begin in range(0, length, most):
        yield slice(begin, begin + most)
