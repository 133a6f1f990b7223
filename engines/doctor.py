"""What this machine can build, run and prove, and what would supply the rest."""

from __future__ import annotations

from typing import Literal

from attnport.engines import devices, libraries
from attnport.engines.kinds import KINDS, EngineKind, lack_to_build, lack_to_run
from attnport.export.records import Record

# What attnport loads, and what for.
_USES = {
    "onnx": "files",
    "onnx_ir": "passes",
    "torch": "modules, export, torch engines",
    "onnxscript": "export",
    "onnxruntime": "ort engines",
    "tensorrt_rtx": "tensorrt-rtx plans",
    "tensorrt": "tensorrt plans",
    "cuda.bindings.runtime": "running plans",
    "starlette": "serving",
    "uvicorn": "serving",
}
Proof = Literal["parity", "fusion", "QKV in the plan", "latency"]


class LibraryDiagnosis(Record):
    """A library that was really loaded, or why it was not.

    Attributes:
        library: The module.
        version: As it says itself; "" where it does not load.
        used_for: What needs it.
        problem: Why it does not load; empty where it does.
        command: The command that supplies it; empty where it loads, or none does.
    """

    library: str
    version: str
    used_for: str
    problem: str = ""
    command: str = ""


class DeviceDiagnosis(Record):
    """A CUDA device.

    Attributes:
        name: Its name.
        compute_capability: Such as "9.0".
        rtx_target: Whether TensorRT for RTX has a target of that name; None where it is not there.
    """

    name: str
    compute_capability: str
    rtx_target: bool | None


class EngineDiagnosis(Record):
    """What this machine can do with one kind of engine.

    Attributes:
        kind: The kind.
        summary: What it is.
        usable: Whether it can run here.
        buildable: Whether it can be built here.
        proves: What can be proved of it here.
        missing: The one thing that running it lacks; empty where it is usable.
        remedy: What to do about it; empty where it is usable.
        command: The command that supplies it; empty where none does.
        build_missing: The one thing that building it lacks; empty where it is buildable.
        build_command: The command that supplies that; empty where none does.
        versions: The libraries it needs that were really loaded, with their versions.
        device: Where it would run.
    """

    kind: str
    summary: str
    usable: bool
    buildable: bool
    proves: tuple[Proof, ...] = ()
    missing: str = ""
    remedy: str = ""
    command: str = ""
    build_missing: str = ""
    build_command: str = ""
    versions: dict[str, str]
    device: str


def diagnose() -> tuple[EngineDiagnosis, ...]:
    """Loads what every kind of engine needs, and says what is there and what is not."""
    return tuple(_diagnose(kind) for kind in KINDS.values())


def diagnose_libraries() -> tuple[LibraryDiagnosis, ...]:
    """Loads every library that something of attnport needs."""
    return tuple(_library(name, used_for) for name, used_for in _USES.items())


def diagnose_devices() -> tuple[DeviceDiagnosis, ...]:
    """The CUDA devices, each with whether TensorRT for RTX names it."""
    return tuple(
        DeviceDiagnosis(
            name=device.name,
            compute_capability=".".join(map(str, device.compute_capability)),
            rtx_target=_rtx_target(*device.compute_capability),
        )
        for device in devices.cuda_devices()
    )


def _library(name: str, used_for: str) -> LibraryDiagnosis:
    problem = libraries.why_missing(name)
    return LibraryDiagnosis(
        library=name,
        version="" if problem else libraries.version(name),
        used_for=used_for,
        problem=problem,
        command=libraries.install_command(name) if problem else "",
    )


def _rtx_target(major: int, minor: int) -> bool | None:
    trt = libraries.load("tensorrt_rtx")
    return None if trt is None else hasattr(trt.ComputeCapability, f"SM{major}{minor}")


def _diagnose(kind: EngineKind) -> EngineDiagnosis:
    lack, build_lack = lack_to_run(kind), lack_to_build(kind)
    return EngineDiagnosis(
        kind=kind.name,
        summary=kind.summary,
        usable=lack is None,
        buildable=build_lack is None,
        proves=_proofs(kind, usable=lack is None, buildable=build_lack is None),
        missing=lack.what if lack else "",
        remedy=lack.remedy if lack else "",
        command=lack.command if lack else "",
        build_missing=build_lack.what if build_lack else "",
        build_command=build_lack.command if build_lack else "",
        versions=_versions(kind),
        device=_device(kind),
    )


def _proofs(kind: EngineKind, *, usable: bool, buildable: bool) -> tuple[Proof, ...]:
    """A plan tells of its kernels without being run; numbers need a run."""
    from_plan: tuple[Proof, ...] = ("fusion", "QKV in the plan")
    from_run: tuple[Proof, ...] = ("parity", "latency")
    return (from_run if usable else ()) + (from_plan if kind.builds_plan and buildable else ())


def _versions(kind: EngineKind) -> dict[str, str]:
    found: dict[str, str] = {}
    if not libraries.why_missing(kind.library):
        found[kind.library] = libraries.version(kind.library)
    if kind.builds_plan:
        found["cuda-bindings"] = libraries.installed_version("cuda-bindings")
    return {name: version for name, version in found.items() if version}


def _device(kind: EngineKind) -> str:
    if kind.device == "cpu":
        return "CPU"
    names = [
        f"{device.name} (compute capability {'.'.join(map(str, device.compute_capability))})"
        for device in devices.cuda_devices()
    ]
    return ", ".join(names) or "none"
