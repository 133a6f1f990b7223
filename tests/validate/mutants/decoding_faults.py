"""Faults of decoding: what a step is told, or leaves behind, is not what the step before gave.

Letters: B batch, N new tokens, P past ones, T = P + N, M rows of a static cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tests.validate.mutants.engine_faults import Arrays, EngineFault, Good, Runs

from attnport.engines.decoding.layout import DecodingLayout, layout_of

Feeds = Mapping[str, np.ndarray]


@dataclass
class Step:
    """One call of an engine with caches.

    Attributes:
        layout: The parts of its graph.
        feeds: What it is given; changed in place.
    """

    layout: DecodingLayout
    feeds: Arrays

    @property
    def past(self) -> int:
        """P: how many columns were there before, at most."""
        if self.layout.write_at is not None:
            return int(self.feeds[self.layout.write_at.name].max())
        cache = self.layout.caches[0]
        return int(self.feeds[cache.input.name].shape[cache.axis])

    @property
    def new(self) -> int:
        """N."""
        return int(self.feeds[self.layout.tokens.name].shape[1])

    @property
    def mask(self) -> np.ndarray:
        assert self.layout.mask is not None
        return self.feeds[self.layout.mask.name]

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """The column of each new token, (B,N,1), and those of the keys, (T,)."""
        if self.layout.write_at is not None:
            first = self.feeds[self.layout.write_at.name][:, None, None]
        else:
            first = np.array(self.past)[None, None, None]
        return first + np.arange(self.new)[None, :, None], np.arange(self.mask.shape[-1])


def _told(change: Callable[[Step], None]) -> EngineFault:
    """A step that is told something else."""

    def fault(good: Good) -> Runs | None:
        if not good.bundle.manifest.caches:
            return None
        layout = layout_of(good.bundle)

        def run(feeds: Feeds) -> Arrays:
            step = Step(layout, {name: array.copy() for name, array in feeds.items()})
            change(step)
            return good.run(step.feeds)

        return run

    return fault


def _left(change: Callable[[Step, Arrays], None]) -> EngineFault:
    """A step that leaves something else behind."""

    def fault(good: Good) -> Runs | None:
        if not good.bundle.manifest.caches:
            return None
        layout = layout_of(good.bundle)

        def run(feeds: Feeds) -> Arrays:
            outputs = {name: array.copy() for name, array in good.run(feeds).items()}
            change(Step(layout, dict(feeds)), outputs)
            return outputs

        return run

    return fault


def _positions_off(step: Step) -> None:
    assert step.layout.positions is not None
    if step.past > 0:
        step.feeds[step.layout.positions.name] += 1


def _positions_from_zero(step: Step) -> None:
    assert step.layout.positions is not None
    positions = step.feeds[step.layout.positions.name]
    positions[...] = np.arange(positions.shape[1])


def _positions_of_the_longest(step: Step) -> None:
    assert step.layout.positions is not None
    positions = step.feeds[step.layout.positions.name]
    positions[...] = positions.max(axis=0)


def _past_ignored(step: Step) -> None:
    own, keys = step.columns()
    first = own[:, :1]
    step.mask[np.broadcast_to(keys < first, step.mask.shape)] = False


def _padding_ignored(step: Step) -> None:
    """In steps of one token alone, where it is easily forgotten."""
    if step.new == 1:
        own, keys = step.columns()
        step.mask[...] = keys <= own


def _chunk_not_causal(step: Step) -> None:
    own, keys = step.columns()
    step.mask[...] |= (keys >= own[:, :1]) & (keys <= own[:, -1:])


def _write_one_off(step: Step) -> None:
    if step.layout.write_at is None or step.past == 0:
        return
    where = step.feeds[step.layout.write_at.name]
    room = step.mask.shape[-1] - step.new
    step.feeds[step.layout.write_at.name] = np.minimum(where + 1, room)


def _row_off(step: Step, outputs: Arrays) -> None:
    """Growing caches: the first new row lies over the last one of before, too."""
    if step.layout.kind != "concat" or step.past == 0:
        return
    for cache in step.layout.caches:
        rows = outputs[cache.output.name]
        rows[:, :, step.past - 1] = rows[:, :, step.past]


def _one_row_off(good: Good) -> Runs | None:
    if not good.bundle.manifest.caches:
        return None
    static = layout_of(good.bundle).kind == "static"
    return (_told(_write_one_off) if static else _left(_row_off))(good)


def _swapped(step: Step, outputs: Arrays) -> None:
    names = [cache.output.name for cache in step.layout.caches]
    for key, value in zip(names[::2], names[1::2], strict=True):
        outputs[key], outputs[value] = outputs[value], outputs[key]


def _layers_swapped(step: Step, outputs: Arrays) -> None:
    names = [cache.output.name for cache in step.layout.caches]
    given = [outputs[name] for name in names]
    outputs.update(zip(names, given[2:] + given[:2], strict=True))


def _rows_swapped(step: Step, outputs: Arrays) -> None:
    for cache in step.layout.caches:
        outputs[cache.output.name] = outputs[cache.output.name][::-1].copy()


def _not_kept(step: Step, outputs: Arrays) -> None:
    for cache in step.layout.caches:
        outputs[cache.output.name][...] = 0


def _only_first_kept(step: Step, outputs: Arrays) -> None:
    """The caches of the first layer alone are kept."""
    for cache in step.layout.caches[2:]:
        outputs[cache.output.name][...] = 0


DECODING_FAULTS: dict[str, EngineFault] = {
    "positions off by one in decode": _told(_positions_off),
    "positions from 0 in every step": _told(_positions_from_zero),
    "one position for the whole batch": _told(_positions_of_the_longest),
    "past ignored": _told(_past_ignored),
    "mask of padding ignored in decode": _told(_padding_ignored),
    "a chunk that sees its own future": _told(_chunk_not_causal),
    "cache written one row off": _one_row_off,
    "K and V cache swapped": _left(_swapped),
    "caches of two layers swapped": _left(_layers_swapped),
    "caches of two sequences swapped": _left(_rows_swapped),
    "caches not kept": _left(_not_kept),
    "only the first layer's cache kept": _left(_only_first_kept),
}
