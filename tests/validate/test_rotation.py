"""Sets of inputs in turn, and runs between events: on a device of host memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.engines.host_device import HostDevice

from attnport.engines.resident.base import Resident
from attnport.validate.device_turns import EventTimer, Rotating, copies_us
from attnport.validate.latency_turns import MOST_RUNS, take_turns, warm_up
from attnport.validate.rotation import MOST_SETS, TIMES_THE_CACHE, rotation_for

MIB = 1 << 20


@pytest.mark.parametrize("set_mib", [1, 4, 7, 60, 200])
def test_sets_exceed_the_cache_by_as_few_as_that_takes(set_mib: int) -> None:
    found = rotation_for(set_mib * MIB, 30 * MIB, 80 << 30)
    assert found.beyond_cache
    assert found.sets == 1 or (found.sets - 1) * set_mib < TIMES_THE_CACHE * 30
    assert "taken from beyond the cache of 30.0 MiB" in found.words


def test_small_inputs_stay_within_the_cache_and_that_is_said() -> None:
    found = rotation_for(1024, 50 * MIB, 80 << 30)
    assert found.sets == MOST_SETS
    assert not found.beyond_cache
    assert "they are within the cache of 50.0 MiB" in found.words


def test_no_more_sets_than_memory_holds() -> None:
    found = rotation_for(100 * MIB, 500 * MIB, 1200 * MIB)
    assert found.sets == 3
    assert not found.beyond_cache
    assert rotation_for(100 * MIB, 500 * MIB, 0).sets == 1


@dataclass
class Counting(Resident):
    """Passes the device's time and notes which set was launched: a GPU is what cannot exist here."""

    device: HostDevice
    sets: int
    launched: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = self.device.new_stream()

    def launch(self, which: int) -> None:
        self.launched.append(which)
        self.device.submit(lambda: None, self.stream)

    def result(self, which: int) -> dict[str, np.ndarray]:
        return {}

    def close(self) -> None:
        self.device.free_stream(self.stream)


def test_every_run_is_between_two_events_and_on_the_next_set() -> None:
    device = HostDevice()
    resident = Counting(device, 3)
    timer = EventTimer(device)
    assert timer.turn(Rotating(resident), 5) == [1e3 * device.run_ms] * 5
    assert resident.launched == [0, 1, 2, 0, 1, 2]  # the first warms up
    assert len(timer.turn(Rotating(resident), 10 * MOST_RUNS)) == MOST_RUNS
    timer.close()
    assert device.events == 0


def test_engines_of_a_device_take_turns_by_its_clock() -> None:
    device = HostDevice()
    runs = {name: Rotating(Counting(device, 2)) for name in ("tensorrt", "A/A")}
    turn = EventTimer(device).turn
    seconds = {name: warm_up(run, turn) for name, run in runs.items()}
    assert seconds == dict.fromkeys(runs, pytest.approx(device.run_ms / 1e3))
    found = take_turns(runs, seconds, 0.2, 7, 0, turn)
    assert {name: len(rounds) for name, rounds in found.items()} == dict.fromkeys(runs, 7)
    assert np.all(np.concatenate(list(found.values())) == 1e3 * device.run_ms)


def test_copies_stand_apart() -> None:
    device = HostDevice()
    arrays = {"x": np.zeros((2, 3), np.float16), "mask": np.ones(4, bool)}
    assert copies_us(device, arrays, to_device=True) == 2 * 1e3 * device.copy_ms
    assert copies_us(device, arrays, to_device=False) == 2 * 1e3 * device.copy_ms
    assert not device.memory
    assert not device.streams
    assert device.events == 0
