"""Execution contexts on a device of host memory: buffers, shapes, graphs and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.engines.host_device import DoublingEngine, HostDevice

from attnport.engines.trt_context import ContextPool, PlanContext
from attnport.errors import EngineUnavailableError, GraphError
from attnport.export.records import TensorSpec

X = TensorSpec(name="x", dtype="float16", shape=("batch", "seq"))
Y = TensorSpec(name="y", dtype="float16", shape=("batch", "seq"))


def feeds(*shape: int, start: int = 0) -> dict[str, np.ndarray]:
    count = int(np.prod(shape))
    return {"x": np.arange(start, start + count).reshape(shape).astype(np.float16)}


def context_on(
    device: HostDevice, engine: DoublingEngine | None = None, *, graphs: bool = False
) -> PlanContext:
    return PlanContext(engine or DoublingEngine(device), device, 0, (X,), (Y,), cuda_graphs=graphs)


@pytest.mark.parametrize("graphs", [False, True])
def test_every_shape_is_computed_in_any_order(graphs: bool) -> None:
    device = HostDevice()
    context = context_on(device, graphs=graphs)
    for number, shape in enumerate(
        [(2, 3), (2, 3), (2, 3), (1, 1), (2, 3), (4, 8), (0, 5), (4, 8)]
    ):
        given = feeds(*shape, start=number)
        result = context.run(given)["y"]
        assert result.shape == shape
        np.testing.assert_array_equal(result, 2 * given["x"])
    context.close()
    assert (device.memory, device.streams, device.graphs) == ({}, {}, 0)


def test_results_are_the_callers_own() -> None:
    context = context_on(HostDevice())
    first = context.run(feeds(2, 2))["y"]
    context.run(feeds(2, 2, start=9))
    np.testing.assert_array_equal(first, 2 * feeds(2, 2)["x"])


def test_buffers_are_kept_between_calls() -> None:
    device = HostDevice()
    context = context_on(device)
    context.run(feeds(4, 4))
    allocated = device.allocations
    for shape in ((4, 4), (2, 2), (1, 16), (4, 4)):
        context.run(feeds(*shape))
    assert device.allocations == allocated == 2
    context.run(feeds(4, 5))
    assert device.allocations == 4
    assert len(device.memory) == 2


def test_a_run_is_recorded_once_and_launched_from_then_on() -> None:
    device = HostDevice()
    context = context_on(device, graphs=True)
    for _ in range(4):
        context.run(feeds(2, 2))
    (done,) = device.streams.values()
    assert (done.count("run"), done.count("graph"), device.graphs) == (1, 3, 1)
    context.run(feeds(3, 3))
    assert device.graphs == 1


def test_what_cannot_be_recorded_is_said() -> None:
    device = HostDevice()
    engine = DoublingEngine(device)
    context = context_on(device, engine, graphs=True)
    engine.contexts[0].capturable = False
    with pytest.raises(EngineUnavailableError, match="cannot be recorded as a CUDA graph"):
        context.run(feeds(2, 2))


def test_a_shape_out_of_the_plans_profile_is_said_and_does_not_stick() -> None:
    context = context_on(HostDevice())
    with pytest.raises(GraphError, match=r"refuses the shape \(65, 1\) of 'x'"):
        context.run(feeds(65, 1))
    np.testing.assert_array_equal(context.run(feeds(2, 2))["y"], 2 * feeds(2, 2)["x"])


def test_a_shape_that_depends_on_values_is_not_run() -> None:
    device = HostDevice()
    with pytest.raises(GraphError, match="of the output 'y' depends on values"):
        context_on(device, DoublingEngine(device, unknown=True)).run(feeds(2, 2))


def test_a_profile_that_the_plan_has_not() -> None:
    device = HostDevice()
    with pytest.raises(EngineUnavailableError, match="does not take profile 1"):
        PlanContext(DoublingEngine(device), device, 1, (X,), (Y,))


def test_threads_take_a_context_each_and_get_their_own_results() -> None:
    device = HostDevice()
    engine = DoublingEngine(device, profiles=2)
    pool = ContextPool(lambda profile: PlanContext(engine, device, profile, (X,), (Y,)), most=3)

    def double(number: int) -> bool:
        given = feeds(1 + number % 4, 1 + number % 5, start=number)
        return np.array_equal(pool.run(number % 2, given)["y"], 2 * given["x"])

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(double, range(200)))
    assert {context.profile for context in engine.contexts} == {0, 1}
    assert len(engine.contexts) <= 6
    pool.close()
    assert (device.memory, device.streams) == ({}, {})
