"""Packages and libraries of a provider are looked at before it is used."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnport.engines import devices, libraries, ort_providers
from attnport.engines.kinds import availability
from attnport.engines.ort_probe import Answer
from attnport.engines.ort_providers import tensorrt_mismatch, why_provider_fails

onnxruntime = pytest.importorskip("onnxruntime", reason="asks ONNX Runtime")
CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
# As onnxruntime-gpu 1.31.1 writes it where CUDA's libraries are not there.
NO_CUBLAS = (
    "[E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] onnxruntime::Provider& "
    "onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library "
    "/site-packages/onnxruntime/capi/libonnxruntime_providers_cuda.so with error: "
    "libcublasLt.so.13: cannot open shared object file: No such file or directory"
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    why_provider_fails.cache_clear()
    monkeypatch.setattr(devices, "why_no_cuda", lambda: "")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA])


def answers(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    monkeypatch.setattr(ort_providers, "ask_child", lambda question: answer)


def test_the_cpu_provider_really_opens() -> None:
    assert why_provider_fails("CPUExecutionProvider") == ("", "")


def test_a_provider_that_this_build_has_not_is_not_taken_for_the_cpu() -> None:
    why, _ = why_provider_fails(CUDA)
    if CUDA not in onnxruntime.get_available_providers():
        assert "does not load CUDAExecutionProvider" in why


def test_the_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, Answer(("CPUExecutionProvider",), "", NO_CUBLAS))
    assert availability("ort-cuda") == (
        "onnxruntime's CUDAExecutionProvider needs libcublasLt.so.13, which is not there: "
        "`pip install nvidia-cublas`"
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(died="SIGSEGV"), "onnxruntime died of SIGSEGV while it loaded CUDA"),
        (Answer(error="no driver"), r"does not load CUDAExecutionProvider \(no driver\)"),
        (Answer(("CPUExecutionProvider",)), "it says no reason"),
    ],
)
def test_other_ways_to_fail(monkeypatch: pytest.MonkeyPatch, answer: Answer, said: str) -> None:
    answers(monkeypatch, answer)
    assert re.search(said, availability("ort-cuda"))


def test_a_provider_that_loads_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, Answer((CUDA, "CPUExecutionProvider")))
    assert availability("ort-cuda") == ""


@pytest.mark.parametrize(
    ("installed", "fits"), [("10.9.0", True), ("11.4.0.106", False), ("", True)]
)
def test_tensorrt_of_another_major_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, fits: bool
) -> None:
    provider = tmp_path / "libonnxruntime_providers_tensorrt.so"
    provider.write_bytes(b"\x7fELF\0libcublas.so.13\0libnvinfer.so.10\0libnvonnxparser.so.10\0")
    file = SimpleNamespace(name=provider.name, locate=lambda: provider)
    monkeypatch.setattr("importlib.metadata.files", lambda name: [file])
    monkeypatch.setattr(
        libraries, "installed_version", lambda name: installed if "tensorrt" in name else "1.31.1"
    )
    why, command = tensorrt_mismatch()
    assert (why == "") is fits
    if not fits:
        assert "was linked with TensorRT 10, and TensorRT 11.4.0.106 is installed" in why
        assert command == "pip install 'tensorrt-cu13<11'"
        answers(monkeypatch, Answer((TENSORRT,)))
        assert "they need an environment each" in availability("ort-tensorrt")
