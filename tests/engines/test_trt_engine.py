"""What of a TensorRT engine can be tested without a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.engines.conftest import GraphWriter, model_of, write_bundle
from tests.engines.host_device import DoublingEngine, HostDevice

from attnport.engines import devices, trt_engine
from attnport.engines.build import build_engine
from attnport.engines.kinds import KINDS
from attnport.engines.plan import EnginePlan
from attnport.engines.trt_engine import TrtEngine
from attnport.errors import BuildError, InputError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

BundleMaker = Callable[..., Bundle]
RTX = KINDS["tensorrt-rtx"]


@pytest.mark.skipif(not devices.why_no_cuda(), reason="TensorRT takes the plan where it can run")
def test_a_plan_that_tensorrt_does_not_take_is_refused(attention_bundle: BundleMaker) -> None:
    pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
    bundle = attention_bundle()
    plan = build_engine(bundle, "tensorrt-rtx")
    # Past the check for a device, which `open_engine` makes first.
    with pytest.raises(BuildError, match=r"does not take the plan .*build again on this machine"):
        TrtEngine(bundle, RTX, plan)


@pytest.fixture
def doubling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrtEngine]:
    """Opens an engine that doubles x, on a device of host memory, in two profiles."""

    def open_it(
        profiles: tuple[dict[str, tuple[int, int, int]], ...], **options: bool
    ) -> TrtEngine:
        graph = GraphWriter("float16")
        graph.add("Add", ["x", "x"], "y")
        x, y = (TensorSpec(name=n, dtype="float16", shape=("batch", "seq")) for n in "xy")
        bundle = write_bundle(tmp_path / "double", model_of(graph, (x,), (y,), 18), (x,), (y,))
        device = HostDevice()
        engine = DoublingEngine(device, profiles=max(1, len(profiles)))
        monkeypatch.setattr(trt_engine, "_load", lambda *_: (object(), engine))
        plan = EnginePlan(
            kind="tensorrt-rtx",
            model="double",
            bundle_path=bundle.path,
            bundle_hash=bundle.hash,
            dtype="float16",
            path=bundle.path / "plan",
            versions={},
            build_seconds=0.0,
            profiles=profiles,
        )
        return TrtEngine(bundle, RTX, plan, device=device, **options)

    return open_it


PREFILL = {"batch": (1, 2, 4), "seq": (2, 32, 64)}
DECODE = {"batch": (1, 2, 4), "seq": (1, 1, 1)}


def feeds(batch: int, seq: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(batch * seq).reshape(batch, seq).astype(np.float16)}


@pytest.mark.parametrize("graphs", [False, True])
def test_the_profile_that_fits_is_run(doubling: Callable[..., TrtEngine], graphs: bool) -> None:
    with doubling((PREFILL, DECODE), cuda_graphs=graphs) as engine:
        for batch, seq in ((2, 8), (2, 1), (4, 64), (1, 1), (2, 8)):
            np.testing.assert_array_equal(
                engine.run(feeds(batch, seq))["y"], 2 * feeds(batch, seq)["x"]
            )
        assert {context.profile for context in engine._engine.contexts} == {0, 1}


def test_a_size_in_no_profile_is_refused_with_the_ranges(
    doubling: Callable[..., TrtEngine],
) -> None:
    with doubling((DECODE,)) as engine:
        with pytest.raises(InputError, match=r"no profile of the plan takes batch 2, seq 8; they"):
            engine.run(feeds(2, 8))
        with pytest.raises(InputError, match="axis 'seq' takes 1 to 64"):
            engine.run(feeds(2, 65))
        assert not engine._engine.contexts


@pytest.mark.parametrize(
    "given",
    [
        {"x": np.zeros((2, 2), np.float32)},
        {"x": np.zeros((2, 2, 2), np.float16)},
        {"y": np.zeros((2, 2), np.float16)},
        {},
        {"x": [[1.0]]},
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_the_device(
    doubling: Callable[..., TrtEngine], given: dict[str, object]
) -> None:
    with doubling(()) as engine, pytest.raises(InputError):
        engine.run(given)  # type: ignore[arg-type]  # what users do


def test_strided_inputs_and_nans_pass(doubling: Callable[..., TrtEngine]) -> None:
    given = np.full((4, 8), np.nan, np.float16)
    given[0] = 3
    with doubling(()) as engine:
        for strided in (given[::2], given.T[:3, :]):
            np.testing.assert_array_equal(engine.run({"x": strided})["y"], 2 * strided)


def test_a_closed_engine_says_so(doubling: Callable[..., TrtEngine]) -> None:
    engine = doubling(())
    engine.run(feeds(2, 2))
    engine.close()
    engine.close()
    with pytest.raises(UsageError, match="was closed: open it again"):
        engine.run(feeds(2, 2))


def test_sizes_are_read_from_every_input() -> None:
    specs = (
        TensorSpec(name="x", dtype="float16", shape=("batch", 4, "seq")),
        TensorSpec(name="m", dtype="bool", shape=("memory",), role="mask"),
    )
    shapes = {"x": (2, 4, 7), "m": (5,)}
    assert trt_engine.axis_sizes(specs, shapes) == {"batch": 2, "seq": 7, "memory": 5}
