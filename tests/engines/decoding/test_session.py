"""Sessions of decoding on ONNX Runtime: numbers, padding, caches that stay, and bad input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.decoding.by_hand import (
    DH,
    HKV,
    POSITIONS,
    Kind,
    V,
    make_bundle,
    ratio,
)
from tests.engines.decoding.sequences import Side, logits_by_steps, padded

from attnport.engines.decoding.open import carried_session, open_decoding
from attnport.engines.decoding.ort_caches import OrtCaches
from attnport.engines.decoding.session import DecodingSession
from attnport.engines.open import open_engine
from attnport.errors import InputError, UsageError
from attnport.export.bundle import Bundle

KINDS: tuple[Kind, ...] = ("concat", "static")
SIDES: tuple[Side, ...] = ("left", "right")
IDS = np.random.default_rng(1).integers(0, V, (3, 11))


@pytest.fixture(params=KINDS)
def session(
    bundles: dict[Kind, Bundle], request: pytest.FixtureRequest
) -> Iterator[DecodingSession]:
    with open_decoding(bundles[request.param], "ort-cpu", threads=1) as opened:
        yield opened


def test_full_pass(session: DecodingSession) -> None:
    session.start(3)
    assert ratio(session.feed(IDS), IDS) <= 1


def test_token_by_token(session: DecodingSession) -> None:
    session.start(3)
    steps = [session.feed(IDS[:, n : n + 1]) for n in range(IDS.shape[1])]
    assert ratio(np.concatenate(steps, axis=1), IDS) <= 1


@pytest.mark.parametrize("cuts", [(5,), (1, 2), (4, 9, 10)])
def test_in_chunks(session: DecodingSession, cuts: tuple[int, ...]) -> None:
    session.start(3)
    chunks = [session.feed(part) for part in np.split(IDS, cuts, axis=1)]
    assert ratio(np.concatenate(chunks, axis=1), IDS) <= 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("lengths", [(2, 5, 3), (6, 6, 6), (1, 7, 1)])
def test_padded_prompts_of_different_lengths(
    session: DecodingSession, side: Side, lengths: tuple[int, ...]
) -> None:
    assert ratio(logits_by_steps(session, IDS, lengths, side, steps=4), IDS) <= 1


@pytest.mark.parametrize("side", SIDES)
def test_what_padding_holds_does_not_matter(session: DecodingSession, side: Side) -> None:
    found = []
    for filler in (0, V - 1):
        session.start(3)
        tokens, valid = padded(IDS, (2, 5, 3), side, 6, filler)
        session.feed(tokens, valid)
        found.append(session.feed(IDS[:, 5:6]))
    np.testing.assert_array_equal(found[0], found[1])


def test_padding_within_a_later_chunk(session: DecodingSession) -> None:
    """One row rests while the others go on."""
    session.start(3)
    session.feed(IDS[:, :4])
    going = np.array([[True], [False], [True]])
    session.feed(IDS[:, 4:5], going)
    logits = session.feed(np.array([[IDS[0, 5]], [IDS[1, 4]], [IDS[2, 5]]]))
    found = np.full((3, 11, V), np.nan)
    for row, place in enumerate((5, 4, 5)):
        found[row, place] = logits[row, 0]
    assert ratio(found, IDS) <= 1


def test_caches_are_not_copied(session: DecodingSession) -> None:
    store = session.store
    assert isinstance(store, OrtCaches)
    session.start(3)
    session.feed(IDS[:, :5])
    for place in range(5, 9):
        before = store.addresses()
        session.feed(IDS[:, place : place + 1])
        assert session.copied.caches == 0
        if session.layout.kind == "static":
            assert store.addresses() == before
        else:
            # What was given becomes what is taken: new memory, made by the graph's own Concat.
            assert not set(store.addresses().values()) & set(before.values())
    keys = place + 1 if session.layout.kind == "concat" else 32
    small = 8 + 8 + keys + (8 if session.layout.kind == "static" else 0)
    assert session.copied.to_engine == 3 * small
    assert session.copied.from_engine == 3 * V * 4


class Spy:
    """A binding that remembers where what is bound lies."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self.places: dict[str, int] = {}

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.places[name] = value.data_ptr()
        self._binding.bind_ortvalue_input(name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)


def test_what_a_step_gives_is_what_the_next_one_takes(bundles: dict[Kind, Bundle]) -> None:
    with open_decoding(bundles["concat"], "ort-cpu") as session:
        store = session.store
        assert isinstance(store, OrtCaches)
        spy = store._binding = Spy(store._binding)
        session.start(1)
        session.feed(IDS[:1, :3])
        given = store.addresses()
        session.feed(IDS[:1, 3:4])
        assert {name: spy.places[name] for name in given} == given


def test_carried_caches_give_the_same_and_are_counted(bundles: dict[Kind, Bundle]) -> None:
    bundle = bundles["concat"]
    with carried_session(bundle, open_engine(bundle, "ort-cpu")) as session:
        assert ratio(logits_by_steps(session, IDS, (2, 5, 3), "left", steps=4), IDS) <= 1
        # Past of 9 in, present of 10 out, keys and values.
        assert session.copied.caches == 2 * 3 * HKV * DH * 4 * (9 + 10)


def test_resumed_caches_go_on_as_if_nothing_had_been(session: DecodingSession) -> None:
    session.start(3)
    tokens, valid = padded(IDS, (2, 5, 3), "left", 6)
    session.feed(tokens, valid)
    caches, real = session.read_caches()
    straight = session.feed(IDS[:, 5:6])
    session.resume(caches, real)
    np.testing.assert_array_equal(session.feed(IDS[:, 5:6]), straight)


def test_second_reader_of_a_static_cache_gets_two_buffers(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", "static", second_reader=True)
    with open_decoding(bundle, "ort-cpu", threads=1) as session:
        assert "two buffers" in session.keeps
        assert ratio(logits_by_steps(session, IDS, (2, 5, 3), "right", steps=4), IDS) <= 1


def test_half_precision_runs(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", "static", dtype="float16")
    with open_decoding(bundle, "ort-cpu", threads=1) as session:
        session.start(2)
        assert session.feed(IDS[:2]).dtype == np.float16


def test_positions_beyond_the_table_are_refused(bundles: dict[Kind, Bundle]) -> None:
    with open_decoding(bundles["static"], "ort-cpu") as session:
        session.start(1)
        session._held.position[:] = POSITIONS - 1  # type: ignore[union-attr]
        session.feed(IDS[:1, :1])
        with pytest.raises(InputError, match=r"position 32, and the model has 32 positions"):
            session.feed(IDS[:1, :1])


def test_full_cache_is_refused_and_left_as_it_was(session: DecodingSession) -> None:
    session.start(1, capacity=16 if session.layout.kind == "static" else None)
    most = 16 if session.layout.kind == "static" else 21
    for _ in range(most):
        assert session.room > 0
        session.feed(IDS[:1, :1])
    assert session.room == 0
    with pytest.raises(InputError, match=rf"the cache is full: it holds {most} tokens"):
        session.feed(IDS[:1, :1])
    assert session.steps == most


def test_chunk_that_does_not_fit_is_refused(bundles: dict[Kind, Bundle]) -> None:
    with open_decoding(bundles["static"], "ort-cpu") as session:
        session.start(1, capacity=8)
        session.feed(IDS[:1, :5])
        with pytest.raises(InputError, match="the cache is full"):
            session.feed(IDS[:1, :4])
        session.feed(IDS[:1, :3])


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (np.array([[V]]), rf"token {V} .* none of the vocabulary's {V} ids"),
        (np.array([[-1]]), "token -1"),
        (np.array([[1]], np.int32), "is int32, the graph takes int64"),
        (np.array([[1], [2]]), "tokens of 2 sequences were given, and the caches hold 1"),
        (np.zeros((1, 13), np.int64), "13 tokens were given, and one step takes 1 to 12"),
        (np.zeros((1, 0), np.int64), "0 tokens were given"),
        (np.zeros((1, 1, 1), np.int64), r"has shape \(1, 1, 1\)"),
    ],
)
def test_bad_tokens(session: DecodingSession, tokens: np.ndarray, said: str) -> None:
    session.start(1)
    with pytest.raises(InputError, match=said):
        session.feed(tokens)


def test_bad_validity(session: DecodingSession) -> None:
    session.start(1)
    with pytest.raises(InputError, match="valid is int64"):
        session.feed(IDS[:1, :2], np.ones((1, 2), np.int64))


def test_bad_past(session: DecodingSession) -> None:
    session.start(2)
    session.feed(IDS[:2, :4])
    caches, real = session.read_caches()
    name = next(iter(caches))
    rest = {other: array for other, array in caches.items() if other != name}
    for wrong, said in (
        (caches[name].astype(np.float64), "is float64, the graph takes float32"),
        (caches[name][:1], r"has shape \(1, "),
        (caches[name][:, :, :-1], "has shape"),
    ):
        with pytest.raises(InputError, match=said):
            session.resume({name: wrong, **rest}, real)
    with pytest.raises(InputError, match="give all"):
        session.resume(rest, real)
    with pytest.raises(InputError, match="give a bool for each sequence and column"):
        session.resume(caches, real.astype(np.int64))


def test_bad_start(session: DecodingSession) -> None:
    with pytest.raises(UsageError, match="was not started"):
        session.feed(IDS)
    with pytest.raises(InputError, match="a batch of 5 was given, and the bundle takes 1 to 4"):
        session.start(5)
    with pytest.raises(InputError, match="what stays the same in all steps is nothing"):
        session.start(1, fixed={"memory": np.zeros(1)})


def test_bad_capacity(bundles: dict[Kind, Bundle]) -> None:
    with (
        open_decoding(bundles["static"], "ort-cpu") as session,
        pytest.raises(InputError, match=r"a capacity of 64 was asked for, .* 4 to 32"),
    ):
        session.start(1, capacity=64)


def test_bundle_without_caches(bundles: dict[Kind, Bundle]) -> None:
    plain = bundles["concat"].manifest.model_copy(update={"caches": ()})
    with pytest.raises(UsageError, match="has no caches, so it cannot decode"):
        open_decoding(Bundle(bundles["concat"].path, plain), "ort-cpu")
