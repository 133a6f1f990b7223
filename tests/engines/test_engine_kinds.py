"""What this machine can run is said, and nothing else is pretended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from attnport.engines import devices, libraries
from attnport.engines.build import build_engine
from attnport.engines.doctor import diagnose, diagnose_devices, diagnose_libraries
from attnport.engines.kinds import KINDS, availability, can_build, engine_kind
from attnport.engines.open import open_engine
from attnport.errors import EngineUnavailableError, UsageError
from attnport.export.bundle import Bundle

BundleMaker = Callable[..., Bundle]


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same machine everywhere: one without a GPU."""
    monkeypatch.setattr(devices, "cuda_devices", lambda: ())
    monkeypatch.setattr(devices, "_driver", lambda: None)


@pytest.mark.parametrize("name", ["", "tensorrt_rtx", "ORT-CPU", "ort"])
def test_an_unknown_kind_lists_the_known(attention_bundle: BundleMaker, name: str) -> None:
    bundle = attention_bundle()
    for ask in (engine_kind, availability, can_build):
        with pytest.raises(UsageError, match=r"the engines are: torch-eager, .*tensorrt-rtx"):
            ask(name)
    for act in (build_engine, open_engine):
        with pytest.raises(UsageError, match="the engines are: "):
            act(bundle, name)


@pytest.mark.parametrize("kind", ["tensorrt", "tensorrt-rtx", "ort-cuda", "ort-tensorrt"])
def test_without_a_gpu_it_is_not_run(attention_bundle: BundleMaker, kind: str) -> None:
    with pytest.raises(EngineUnavailableError, match=r"^not run: no CUDA device .*NVIDIA GPU$"):
        open_engine(attention_bundle(), kind)
    assert availability(kind).startswith("no CUDA device")


@pytest.mark.parametrize(
    ("kind", "library", "extra"),
    [("tensorrt", "tensorrt", "trt"), ("tensorrt-rtx", "tensorrt_rtx", "rtx")],
)
def test_a_missing_library_is_named_with_the_command(
    attention_bundle: BundleMaker,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    library: str,
    extra: str,
) -> None:
    def missing(name: str) -> str:
        return f"{name} is not installed" if name == library else ""

    monkeypatch.setattr(libraries, "why_missing", missing)
    command = rf"`pip install 'attnport\[{extra}\]'`"
    with pytest.raises(EngineUnavailableError, match=rf"not built: .*not installed: {command}"):
        build_engine(attention_bundle(), kind)
    assert not can_build(kind)


def test_tensorrt_is_not_built_without_the_gpu_it_times_on(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "why_missing", lambda name: "")
    with pytest.raises(EngineUnavailableError, match="which TensorRT builds with"):
        build_engine(attention_bundle(), "tensorrt")


@pytest.mark.parametrize("kind", ["ort-cuda", "ort-tensorrt"])
def test_a_provider_that_onnxruntime_lacks_is_refused(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(devices, "why_no_cuda", lambda: "")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(EngineUnavailableError, match=r"this onnxruntime has no .*ort-gpu"):
        open_engine(attention_bundle(), kind)


def test_a_library_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert libraries.why_missing("no_such_library") == "no_such_library is not installed"

    def fail(name: str) -> ModuleType:
        raise OSError("libfoo.so: cannot open shared object file\nmore")

    monkeypatch.setattr("importlib.import_module", fail)
    assert libraries.why_missing("broken_library") == (
        "broken_library is installed and does not load (libfoo.so: cannot open shared object file)"
    )


def test_two_onnxruntimes_are_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    libraries.why_missing.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.32.0")
    assert "both installed" in libraries.why_missing("onnxruntime")
    libraries.why_missing.cache_clear()


def test_the_doctor_says_one_thing_of_each_kind() -> None:
    found = {diagnosis.kind: diagnosis for diagnosis in diagnose()}
    assert list(found) == list(KINDS)
    for diagnosis in found.values():
        assert diagnosis.usable == (not diagnosis.missing)
        assert diagnosis.buildable == (not diagnosis.build_missing)
    rtx = found["tensorrt-rtx"]
    assert (rtx.usable, rtx.device) == (False, "none")
    assert "no CUDA device" in rtx.missing
    if "tensorrt_rtx" in sys.modules:
        assert rtx.buildable
        assert rtx.versions["tensorrt_rtx"]


def test_the_doctor_tells_what_can_be_proved() -> None:
    found = {diagnosis.kind: diagnosis for diagnosis in diagnose()}
    if "onnxruntime" in sys.modules:
        assert found["ort-cpu"].proves == ("parity", "latency")
    if found["tensorrt-rtx"].buildable:
        assert found["tensorrt-rtx"].proves == ("fusion", "QKV in the plan")
    assert found["ort-cuda"].proves == ()


def test_the_doctor_loads_libraries_and_names_what_supplies_them() -> None:
    found = {it.library: it for it in diagnose_libraries()}
    assert found["onnx"].version
    assert "onnx" in sys.modules
    for it in found.values():
        assert bool(it.version) != bool(it.problem)
        assert bool(it.command) == bool(it.problem)


@pytest.mark.parametrize(("capability", "named"), [((8, 9), True), ((9, 0), False)])
def test_the_doctor_says_whether_rtx_names_the_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], named: bool
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="asks TensorRT for RTX")
    monkeypatch.setattr(devices, "cuda_devices", lambda: (devices.CudaDevice("x", capability),))
    (device,) = diagnose_devices()
    assert (device.name, device.rtx_target) == ("x", named)


def test_cuda_graphs_are_for_plans(attention_bundle: BundleMaker) -> None:
    with pytest.raises(UsageError, match="ort-cpu records no CUDA graphs"):
        open_engine(attention_bundle(), "ort-cpu", cuda_graphs=True)
