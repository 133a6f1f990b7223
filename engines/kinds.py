"""The kinds of engine: what each needs, and whether this machine has it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Literal

from attnport.engines import devices, libraries
from attnport.errors import UsageError


@dataclass(frozen=True)
class EngineKind:
    """One kind of engine.

    Attributes:
        name: Such as "ort-cpu".
        summary: What it is, for a table.
        library: The module that it needs to be built and to run.
        device: Where it runs.
        needs_module: Whether it runs the PyTorch module instead of the exported graph.
        has_attention_kernels: Whether its plan may hold fused attention kernels, so that fusion is
            a question about it.
        provider: ONNX Runtime's name for what runs the nodes; "" for other kinds.
    """

    name: str
    summary: str
    library: Literal["torch", "onnxruntime", "tensorrt", "tensorrt_rtx"]
    device: Literal["cpu", "cuda"]
    needs_module: bool = False
    has_attention_kernels: bool = False
    provider: str = ""

    @property
    def builds_plan(self) -> bool:
        """Whether building gives a file of the engine's own, and not only a check."""
        return self.library in {"tensorrt", "tensorrt_rtx"}


@dataclass(frozen=True)
class Lack:
    """The one thing that a machine lacks, and what supplies it; `command` where one line does."""

    what: str
    remedy: str
    command: str = ""

    def sentence(self) -> str:
        return f"{self.what}: {self.remedy}"


KINDS: dict[str, EngineKind] = {
    kind.name: kind
    for kind in (
        EngineKind("torch-eager", "the module as written", "torch", "cpu", needs_module=True),
        EngineKind(
            "torch-sdpa", "the module with PyTorch's SDPA", "torch", "cpu", needs_module=True
        ),
        EngineKind(
            "torch-compile", "the module through torch.compile", "torch", "cpu", needs_module=True
        ),
        EngineKind(
            "ort-cpu",
            "the graph in ONNX Runtime on the CPU",
            "onnxruntime",
            "cpu",
            provider="CPUExecutionProvider",
        ),
        EngineKind(
            "ort-cuda",
            "the graph in ONNX Runtime on CUDA",
            "onnxruntime",
            "cuda",
            has_attention_kernels=True,
            provider="CUDAExecutionProvider",
        ),
        EngineKind(
            "ort-tensorrt",
            "the graph in ONNX Runtime through TensorRT",
            "onnxruntime",
            "cuda",
            has_attention_kernels=True,
            provider="TensorrtExecutionProvider",
        ),
        EngineKind(
            "tensorrt",
            "a TensorRT plan, built where it runs",
            "tensorrt",
            "cuda",
            has_attention_kernels=True,
        ),
        EngineKind(
            "tensorrt-rtx",
            "a TensorRT for RTX plan, built with or without a GPU",
            "tensorrt_rtx",
            "cuda",
            has_attention_kernels=True,
        ),
    )
}


def engine_kind(name: str) -> EngineKind:
    """The kind of that name.

    Raises:
        UsageError: If there is none.
    """
    if name not in KINDS:
        raise UsageError(f"there is no engine {name!r}; the engines are: {', '.join(KINDS)}")
    return KINDS[name]


def availability(kind: str) -> str:
    """Why this machine cannot run a kind, as one sentence with the remedy; "" where it can.

    Raises:
        UsageError: If there is no such kind.
    """
    lack = lack_to_run(engine_kind(kind))
    return lack.sentence() if lack else ""


def can_build(kind: str) -> bool:
    """Whether this machine can build a kind.

    Raises:
        UsageError: If there is no such kind.
    """
    return lack_to_build(engine_kind(kind)) is None


def lack_to_run(kind: EngineKind) -> Lack | None:
    """What this machine lacks to run a kind; None where it can."""
    if kind.device == "cuda" and devices.why_no_cuda():
        return Lack(devices.why_no_cuda(), f"run {kind.name} on a machine with an NVIDIA GPU")
    return _lacks_library(kind) or _lacks_provider(kind) or _lacks_tool(kind)


def lack_to_build(kind: EngineKind) -> Lack | None:
    """What this machine lacks to build a kind; None where it can."""
    if not kind.builds_plan:
        return lack_to_run(kind)
    lack = _lacks_library(kind)
    if lack is None and kind.library == "tensorrt" and devices.why_no_cuda():
        # TensorRT proper times its kernels on the GPU that it builds for.
        what = f"{devices.why_no_cuda()}, which TensorRT builds with"
        return Lack(what, "build on the GPU machine, or build tensorrt-rtx here")
    return lack


def _lacks_library(kind: EngineKind) -> Lack | None:
    why = libraries.why_missing(kind.library)
    if not why:
        return None
    command = libraries.install_command(kind.library)
    return Lack(why, f"`{command}`", command)


def _lacks_provider(kind: EngineKind) -> Lack | None:
    if not kind.provider:
        return None
    import onnxruntime

    if kind.provider not in onnxruntime.get_available_providers():
        command = "pip uninstall -y onnxruntime && pip install 'attnport[ort-gpu]'"
        return Lack(f"this onnxruntime has no {kind.provider}", f"`{command}`", command)
    if kind.device == "cpu":
        return None
    from attnport.engines.ort_providers import why_provider_fails

    why, command = why_provider_fails(kind.provider)
    return Lack(why, f"`{command}`" if command else "see onnxruntime's page of requirements",
                command) if why else None  # fmt: skip


def _lacks_tool(kind: EngineKind) -> Lack | None:
    if kind.name == "torch-compile":
        compiler = os.environ.get("CXX", "g++")
        if not (shutil.which(compiler) or shutil.which("clang++")):
            return Lack(
                f"torch-compile needs a C++ compiler, and {compiler} is not on the PATH",
                "install g++ or clang++, or set CXX",
            )
    if kind.builds_plan and not libraries.installed_version("cuda-bindings"):
        command = "pip install cuda-bindings"
        what = f"{kind.name} runs through cuda-bindings, which is not installed"
        return Lack(what, f"`{command}`", command)
    return None
