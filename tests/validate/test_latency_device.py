"""Latency of a GPU's engines: what of it is not CUDA itself, on a device of host memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.host_device import HostDevice
from tests.validate.small_bundle import make_bundle

from attnport.engines import devices
from attnport.engines.build import build_engine
from attnport.engines.kinds import KINDS, availability
from attnport.engines.resident.base import Resident
from attnport.engines.resident.session import ResidentSession
from attnport.errors import EngineUnavailableError
from attnport.export.bundle import Bundle
from attnport.validate import latency
from attnport.validate.latency import measure_latency
from attnport.validate.latency_device import DeviceEngines
from attnport.validate.latency_job import LatencyJob
from attnport.validate.latency_result import measurements_from_samples


def engines(bundle: Bundle, device: HostDevice, **changed: np.ndarray) -> DeviceEngines:
    case = bundle.load_case("b2n7")
    return DeviceEngines(bundle, replace(case, inputs={**case.inputs, **changed}), None, device)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """ONNX Runtime on the CPU stands where its CUDA provider would."""
    device = HostDevice()
    device.cache = 4 << 10  # a set of inputs and outputs is 3.5 KiB

    def resident(self: DeviceEngines, kind: str, graphs: bool) -> Resident:
        assert (kind, graphs) == ("ort-cuda", False)
        sets = self.rotation.sets
        return ResidentSession(self._bundle, KINDS["ort-cpu"], device, self._feeds, sets)

    monkeypatch.setattr(DeviceEngines, "_resident", resident)
    return device


def test_what_is_timed_is_judged_first(bundle: Bundle, on_host: HostDevice) -> None:
    run = engines(bundle, on_host).open("ort-cuda")
    assert run.resident.sets == 3
    wrong = bundle.load_case("b2n7").inputs["x"] * 2
    with pytest.raises(EngineUnavailableError, match="its result on the device is wrong, y"):
        engines(bundle, on_host, x=wrong).open("ort-cuda")
    run.resident.close()
    assert not on_host.streams


def test_rotation_and_copies_are_stated(bundle: Bundle) -> None:
    device = HostDevice()
    facts = engines(bundle, device).facts()
    assert facts["copies_in_us"] == facts["copies_out_us"] == 1e3 * device.copy_ms
    assert facts["cache_bytes"] == device.cache_bytes()
    assert isinstance(facts["rotated_bytes"], int)


def test_entries_of_a_device_are_compared_among_themselves(bundle: Bundle) -> None:
    job = LatencyJob(
        bundle=str(bundle.path), kinds=("tensorrt", "torch-eager-on-cuda"), device="cuda",
        case="b2n7", seconds=1, rounds=7, threads=2, seed=0,
    )  # fmt: skip
    draws = np.random.default_rng(0)

    def samples(median_us: float) -> np.ndarray:
        return np.asarray(median_us * draws.normal(1.0, 0.01, (7, 20)))

    found = measurements_from_samples(
        bundle,
        job,
        {"tensorrt": samples(20), "torch-eager-on-cuda": samples(100), "A/A": samples(100)},
        "torch-eager-on-cuda",
        {"copies_in_us": 5.0},
        "3 sets of inputs in turn",
    )
    assert found[0].values["reference"] == "torch-eager-on-cuda"
    assert found[0].values["eager_ratio"] == pytest.approx(0.2, rel=0.1)
    assert found[0].values["copies_in_us"] == 5.0
    assert found[0].note.endswith("times as fast as torch-eager-on-cuda; 3 sets of inputs in turn")
    assert found[2].note.startswith("A/A test: torch-eager-on-cuda entered twice")


def test_each_engine_is_entered_with_and_without_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = make_bundle(tmp_path / "half", "float16")
    monkeypatch.setattr(latency, "availability", lambda kind: "")
    monkeypatch.setattr(latency, "_torch_has_cuda", lambda: True)
    on, left_out = latency._by_device(half, ["tensorrt", "ort-cpu"], True)
    assert list(on) == ["cuda"]
    assert on["cuda"][:2] == ["tensorrt", "tensorrt-graph"]
    assert "torch-sdpa-on-cuda" in on["cuda"]
    assert "torch-sdpa-on-cuda-graph" in on["cuda"]
    assert "emulated" in left_out["ort-cpu"]


@pytest.mark.gpu
@pytest.mark.skipif(bool(devices.why_no_cuda()), reason=devices.why_no_cuda() or "there is one")
@pytest.mark.parametrize("kind", [name for name, one in KINDS.items() if one.device == "cuda"])
def test_a_gpus_engines_are_measured(tmp_path: Path, kind: str) -> None:
    """Unrun until a machine with a GPU has run it."""
    if availability(kind):
        pytest.skip(availability(kind))
    from attnport.models.sources import spec_from_source
    from attnport.pipeline_run import bundle_from_spec

    spec = spec_from_source("multi-head-512-8")
    bundle = bundle_from_spec(spec, tmp_path / "b", dtype="float16", max_cases=3)
    build_engine(bundle, kind)
    found = measure_latency(bundle, [kind], module=spec.make(), peers=True, seconds=1.0)
    measured = {m.engine: m for m in found.measurements if not m.note.startswith("A/A test")}
    assert kind in measured, found.left_out
    if KINDS[kind].builds_plan:
        assert f"{kind}-graph" in measured, found.left_out
    assert any(name.startswith("torch-") for name in measured)
    for one in measured.values():
        for name in ("rotated_sets", "copies_in_us", "copies_out_us"):
            value = one.values[name]
            assert isinstance(value, int | float)
            assert value > 0
