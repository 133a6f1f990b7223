"""What this machine can build and run, and what would supply the rest."""

from __future__ import annotations

from attnport.engines import devices, libraries
from attnport.engines.kinds import KINDS, EngineKind, lack_to_build, lack_to_run
from attnport.export.records import Record


class EngineDiagnosis(Record):
    """What this machine can do with one kind of engine.

    Attributes:
        kind: The kind.
        summary: What it is.
        usable: Whether it can run here.
        buildable: Whether it can be built here.
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


def _diagnose(kind: EngineKind) -> EngineDiagnosis:
    lack, build_lack = lack_to_run(kind), lack_to_build(kind)
    return EngineDiagnosis(
        kind=kind.name,
        summary=kind.summary,
        usable=lack is None,
        buildable=build_lack is None,
        missing=lack.what if lack else "",
        remedy=lack.remedy if lack else "",
        command=lack.command if lack else "",
        build_missing=build_lack.what if build_lack else "",
        build_command=build_lack.command if build_lack else "",
        versions=_versions(kind),
        device=_device(kind),
    )


def _versions(kind: EngineKind) -> dict[str, str]:
    found: dict[str, str] = {}
    if not libraries.why_missing(kind.library):
        found[kind.library] = libraries.version(kind.library)
    if kind.builds_plan:
        found["polygraphy"] = libraries.installed_version("polygraphy")
    return {name: version for name, version in found.items() if version}


def _device(kind: EngineKind) -> str:
    if kind.device == "cpu":
        return "CPU"
    names = [
        f"{device.name} (compute capability {'.'.join(map(str, device.compute_capability))})"
        for device in devices.cuda_devices()
    ]
    return ", ".join(names) or "none"
