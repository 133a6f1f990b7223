"""Engines whose inputs lie on the device: the plan on host memory, the others on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tests.engines.host_device import DoublingEngine, HostDevice

from attnport.axes import Axis
from attnport.engines.kinds import KINDS
from attnport.engines.open import open_engine
from attnport.engines.resident.module import ResidentModule
from attnport.engines.resident.plan import ResidentPlan
from attnport.engines.resident.session import ResidentSession
from attnport.engines.torch_engine import TorchEngine
from attnport.engines.trt_engine import TrtEngine
from attnport.errors import EngineUnavailableError, InputError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

X = TensorSpec(name="x", dtype="float16", shape=("batch", "seq"))
Y = TensorSpec(name="y", dtype="float16", shape=("batch", "seq"))
FEEDS = {"x": np.arange(6).reshape(2, 3).astype(np.float16)}
BundleMaker = Callable[..., Bundle]


def opened(device: HostDevice) -> TrtEngine:
    """What of an opened plan is used; a real one needs a GPU."""
    axes = {name: Axis(name, 1, 4, 64) for name in ("batch", "seq")}
    return cast(
        TrtEngine,
        SimpleNamespace(
            device=device, plan_engine=DoublingEngine(device), inputs=(X,), outputs=(Y,),
            profiles=(axes,),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("graphs", [False, True])
def test_a_plan_computes_every_set_at_its_own_addresses(graphs: bool) -> None:
    device = HostDevice()
    with ResidentPlan(opened(device), FEEDS, 3, cuda_graphs=graphs) as resident:
        for which in (2, 0, 1, 2):
            resident.launch(which)
            np.testing.assert_array_equal(resident.result(which)["y"], 2 * FEEDS["x"])
        assert len(device.memory) == 3 * 2
        assert device.graphs == (3 if graphs else 0)
    assert not device.memory
    assert not device.graphs
    assert not device.streams


def test_a_launch_copies_nothing() -> None:
    device = HostDevice()
    with ResidentPlan(opened(device), FEEDS, 2) as resident:
        before = len(device.streams[resident.stream])
        resident.launch(1)
        assert device.streams[resident.stream][before:] == ["run"]


def test_a_plan_without_a_profile_for_the_inputs_says_so() -> None:
    with pytest.raises(InputError, match="takes batch 65, seq 3"):
        ResidentPlan(opened(HostDevice()), {"x": np.zeros((65, 3), np.float16)}, 1)


def test_a_session_computes_every_set(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    draws = np.random.default_rng(0)
    feeds = {"x": draws.standard_normal((2, 5, 128)).astype(np.float16)}
    with (
        open_engine(bundle, "ort-cpu") as engine,
        ResidentSession(bundle, KINDS["ort-cpu"], HostDevice(), feeds, 2) as resident,
    ):
        (name,) = (spec.name for spec in bundle.manifest.outputs)
        for which in (1, 0):
            resident.launch(which)
            found = resident.result(which)[name]
            np.testing.assert_array_equal(found, engine.run(feeds)[name])


def test_a_module_computes_every_set(attention_bundle: BundleMaker) -> None:
    torch = pytest.importorskip("torch", reason="runs PyTorch")
    bundle = attention_bundle(dtype="float32")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 5, 128)).astype(np.float32)}
    with open_engine(bundle, "torch-eager", module=torch.nn.Linear(128, 128)) as engine:
        assert isinstance(engine, TorchEngine)
        (name,) = (spec.name for spec in bundle.manifest.outputs)
        # A Linear's parameter is `input`, so that x is given by its position.
        wanted = engine.run(feeds)[name]
        with ResidentModule(engine, HostDevice(), feeds, 2, where="cpu") as resident:
            for which in (1, 0):
                resident.launch(which)
                np.testing.assert_array_equal(resident.result(which)[name], wanted)
        with pytest.raises(EngineUnavailableError, match="cpu records no CUDA graphs"):
            ResidentModule(engine, HostDevice(), feeds, 1, where="cpu", cuda_graphs=True)
