"""`attnport doctor`: what this machine can do and prove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.cli.options import Json
from attnport.cli.screen import progress_bar, say, show_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from attnport.engines.doctor import DeviceDiagnosis, EngineDiagnosis, LibraryDiagnosis
    from attnport.validate.report import Machine


def doctor(as_json: Json = False) -> None:
    """Say which engines this machine can build, run and prove, and what would supply the others.

    Libraries are really loaded, not only looked up.

    \b
    attnport doctor
    attnport doctor --json
    """
    with progress_bar("loading the libraries"):
        from attnport.engines.doctor import diagnose, diagnose_devices, diagnose_libraries
        from attnport.validate.machine import this_machine

        machine, devices = this_machine(), diagnose_devices()
        libraries, engines = diagnose_libraries(), diagnose()
    if as_json:
        _print_json(machine, devices, libraries, engines)
        return
    _show_machine(machine, devices)
    show_table(
        ("library", "version", "used for", "what is missing, and what supplies it"),
        [
            (it.library, it.version or "none", it.used_for, _lack(it.problem, it.command))
            for it in libraries
        ],
    )
    show_table(
        ("engine", "what it is", "builds", "runs", "on", "proves", "what is missing"),
        map(_cells, engines),
    )


def _show_machine(machine: Machine, devices: Sequence[DeviceDiagnosis]) -> None:
    say(f"{machine.cpu or machine.platform}, {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.1f} GiB, Python {machine.python}")  # fmt: skip
    say(f"GPU: {', '.join(machine.gpus) or 'none'}")
    for device in devices:
        target = {
            True: "has a target for it",
            False: "names no target for it",
            None: "is not here",
        }
        say(f"  {device.name}: compute capability {device.compute_capability}; TensorRT for RTX "
            f"{target[device.rtx_target]}")  # fmt: skip


def _print_json(
    machine: Machine,
    devices: Sequence[BaseModel],
    libraries: Sequence[LibraryDiagnosis],
    engines: Sequence[EngineDiagnosis],
) -> None:
    import json

    content = {
        "machine": machine.model_dump(),
        "devices": [device.model_dump() for device in devices],
        "libraries": [library.model_dump() for library in libraries],
        "engines": [engine.model_dump() for engine in engines],
    }
    say(json.dumps(content, indent=2))


def _cells(engine: EngineDiagnosis) -> tuple[str, ...]:
    lacks = [f"{engine.missing}: {engine.remedy}"] if engine.missing else []
    if engine.build_missing and engine.build_missing != engine.missing:
        lacks.append(f"to build it: {_lack(engine.build_missing, engine.build_command)}")
    return (
        engine.kind,
        engine.summary,
        "yes" if engine.buildable else "no",
        "yes" if engine.usable else "no",
        engine.device,
        ", ".join(engine.proves) or "nothing",
        "\n".join(lacks),
    )


def _lack(problem: str, command: str) -> str:
    return f"{problem}: `{command}`" if command else problem
