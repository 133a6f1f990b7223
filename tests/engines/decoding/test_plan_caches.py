"""Caches in device memory, on a device of host memory: numbers, profiles, bytes, buffers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from tests.engines.decoding.by_hand import DH, HKV, Kind, V, ratio
from tests.engines.decoding.host_plan import HostPlan
from tests.engines.decoding.sequences import logits_by_steps

from attnport.axes import Axis
from attnport.engines.decoding.layout import layout_of
from attnport.engines.decoding.plan_caches import PlanCaches
from attnport.engines.decoding.session import DecodingSession
from attnport.errors import InputError
from attnport.export.bundle import Bundle

KINDS: tuple[Kind, ...] = ("concat", "static")
IDS = np.random.default_rng(1).integers(0, V, (3, 11))


def opened(bundle: Bundle, *, least: int = 1) -> tuple[DecodingSession, HostPlan]:
    """A session on a plan of two profiles: prefill, and exactly one token."""
    one = {**bundle.axes, "seq": Axis("seq", 1, 1, 1)}
    many = {**bundle.axes, "seq": Axis("seq", least, 4, 12)}
    plan = HostPlan(bundle, (many, one))
    layout = layout_of(bundle)
    return DecodingSession(layout, PlanCaches(cast(Any, plan), layout)), plan


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_numbers(bundles: dict[Kind, Bundle], kind: Kind, side: Any) -> None:
    session, plan = opened(bundles[kind])
    with session:
        found = logits_by_steps(session, IDS, (2, 5, 3), side, steps=4)
        assert ratio(found, IDS) <= 1
        assert {c.profile: c.runs for c in plan.contexts} == {0: 1, 1: 4}
    assert plan.closed
    assert plan.device.memory == {}
    assert plan.device.streams == {}


@pytest.mark.parametrize("kind", KINDS)
def test_only_small_inputs_and_the_result_are_copied(
    bundles: dict[Kind, Bundle], kind: Kind
) -> None:
    session, plan = opened(bundles[kind])
    with session:
        session.start(2)
        session.feed(IDS[:2, :4])
        allocated = plan.device.allocations
        log = plan.device.streams[1]
        log.clear()
        session.feed(IDS[:2, 4:5])
        session.feed(IDS[:2, 5:6])
        inputs = 4 if kind == "static" else 3
        assert log.count("out") == 2
        assert log.count("in") == 2 * inputs
        assert session.copied.caches == 0
        # Only a mask of more keys may need other memory.
        assert plan.device.allocations - allocated <= 2


def test_growing_caches_change_places_and_static_ones_stay(bundles: dict[Kind, Bundle]) -> None:
    for kind, name, other in (
        ("concat", "past_key_0", "present_key_0"),
        ("static", "cache_key_0", "updated_key_0"),
    ):
        session, plan = opened(bundles[cast(Kind, kind)])
        with session:
            session.start(1)
            places = []
            for place in range(3):
                session.feed(IDS[:1, place : place + 1])
                addresses = plan.contexts[0].addresses
                places.append((addresses[name], addresses[other]))
        (a, b), second, third = places
        assert second == (b, a)
        assert third == (a, b)
        assert (a == b) == (kind == "static")


def test_caches_are_read_back(bundles: dict[Kind, Bundle]) -> None:
    session, _ = opened(bundles["concat"])
    with session:
        session.start(2)
        session.feed(IDS[:2, :4])
        caches, real = session.read_caches()
        assert caches["past_key_0"].shape == (2, HKV, 4, DH)
        straight = session.feed(IDS[:2, 4:5])
        session.resume(caches, real)
        np.testing.assert_array_equal(session.feed(IDS[:2, 4:5]), straight)


def test_no_profile_for_the_step(bundles: dict[Kind, Bundle]) -> None:
    bundle = bundles["concat"]
    layout = layout_of(bundle)
    plan = HostPlan(bundle, ({**bundle.axes, "seq": Axis("seq", 1, 1, 1)},))
    with DecodingSession(layout, PlanCaches(cast(Any, plan), layout)) as session:
        session.start(1)
        with pytest.raises(InputError, match=r"no profile of the plan takes .*seq 4"):
            session.feed(IDS[:1, :4])
