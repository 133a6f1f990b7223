"""What masks hide: every kind that a case may have, as a bool array; True is visible.

Letters as everywhere: B batch, H heads, N queries, T keys. A mask may stand for any trailing part
of (B,H,N,T), with 1 wherever it broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnport.export.records import TensorSpec

# Those that every bundle carries; the others are made where the module is at hand.
MASKS = ("visible", "causal", "right-padding", "left-padding", "random", "dead-row")
# "same-…" are random masks that are constant along one dimension: what a mask of size 1 there
# broadcasts to.
FURTHER_MASKS = (
    "block",
    "all-dead",
    "same-batch",
    "same-heads",
    "same-queries",
    "same-keys",
)  # fmt: skip
# How a bias hides: exactly, or by a number that other people's code takes for large enough.
FILLS = ("-inf", "finfo-min", "-10000")

_SHARE_VISIBLE = 0.7
_DIMENSIONS = {"same-keys": 1, "same-queries": 2, "same-heads": 3, "same-batch": 4}


def applies(kind: str, masked: Sequence[TensorSpec]) -> bool:
    """Whether some mask among the inputs can be of that kind: causality needs a row a query."""
    if kind in ("causal", "block"):
        return any(has_rows(spec) for spec in masked)
    if kind in _DIMENSIONS:
        place = _DIMENSIONS[kind]
        return any(len(spec.shape) >= place and spec.shape[-place] != 1 for spec in masked)
    return True


def has_rows(spec: TensorSpec) -> bool:
    """Whether the last two dimensions are queries and keys, not 1 (or the batch) and keys."""
    if len(spec.shape) < 2 or spec.shape[-2] == 1:
        return False
    return len(spec.shape) > 2 or spec.shape[-2] == spec.shape[-1]


def visible(
    spec: TensorSpec, shape: tuple[int, ...], kind: str, rng: np.random.Generator
) -> np.ndarray:
    """A bool mask of a kind.

    Kinds with no dead row in their name leave every query a key, "same-keys" aside: there a query
    sees every key or none.

    Args:
        spec: The input.
        shape: Its sizes in this case.
        kind: One of MASKS or FURTHER_MASKS; or "prefix": query i sees keys 0..i, however many
            there are. One that does not apply leaves everything visible.
        rng: Of what is drawn.
    """
    if not shape:  # a flag for the whole call: it hides no keys
        return np.array(kind not in ("random", "dead-row", "all-dead"))
    rows = has_rows(spec)
    if kind in ("right-padding", "left-padding"):
        return _padding(shape, kind, rng)
    if kind == "causal" and rows:
        # Keys beyond the queries are those of a past, all visible.
        past = max(shape[-1] - shape[-2], 0)
        return np.broadcast_to(np.tri(shape[-2], shape[-1], past).astype(bool), shape).copy()
    if kind == "prefix" and rows:
        return np.broadcast_to(np.tri(shape[-2], shape[-1]).astype(bool), shape).copy()
    if kind == "block" and rows:
        return _blocks(shape)
    if kind in ("random", "dead-row"):
        return _random(shape, rows, dead=kind == "dead-row", rng=rng)
    if kind == "all-dead":
        return np.zeros(shape, bool)
    if kind in _DIMENSIONS:
        return _constant_along(_DIMENSIONS[kind], shape, rng)
    return np.ones(shape, bool)


def _random(
    shape: tuple[int, ...], rows: bool, *, dead: bool, rng: np.random.Generator
) -> np.ndarray:
    found = rng.random(shape) < _SHARE_VISIBLE
    found[..., 0] = True
    if dead:
        batched = len(shape) > (2 if rows else 1)
        item = found[0] if batched else found
        if rows:
            item[..., 0, :] = False  # the first query of the first batch item
        else:
            item[...] = False  # every query of it
    return found


def _padding(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    keys = shape[-1] if shape else 1
    column = np.arange(keys)
    found = np.ones(shape, bool)
    for number, index in enumerate(_batch_items(shape)):
        length = keys if number == 0 else int(rng.integers(1, keys + 1))
        found[index] = column < length if kind == "right-padding" else column >= keys - length
    return found


def _blocks(shape: tuple[int, ...]) -> np.ndarray:
    """Queries see the keys of their own block, as in packed sequences; three blocks a sequence."""
    queries, keys = np.arange(shape[-2]), np.arange(shape[-1])
    width = max(1, -(-max(shape[-2:]) // 3))
    same = (queries[:, None] // width) == (keys // width)
    same[~same.any(-1)] = True  # more queries than keys: those beyond the last block
    return np.broadcast_to(same, shape).copy()


def _constant_along(place: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) < place:
        return np.ones(shape, bool)
    drawn = tuple(1 if len(shape) - axis == place else size for axis, size in enumerate(shape))
    found = rng.random(drawn) < _SHARE_VISIBLE
    if place > 1:
        found[..., 0] = True
    return np.broadcast_to(found, shape).copy()


def _batch_items(shape: tuple[int, ...]) -> Iterator[tuple[int, ...] | slice]:
    if len(shape) < 2:
        yield slice(None)
        return
    for item in range(shape[0]):
        yield (item,)
