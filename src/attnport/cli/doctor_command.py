"""`attnport doctor`: what this machine can do and prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.cli.options import Json
from attnport.cli.screen import progress_bar, say, show_table

if TYPE_CHECKING:
    from attnport.engines.doctor import EngineDiagnosis
    from attnport.validate.report import Machine


def doctor(as_json: Json = False) -> None:
    """Say which engines this machine can build and run, and what would supply the others.

    Libraries are really loaded, not only looked up.

    \b
    attnport doctor
    attnport doctor --json
    """
    with progress_bar("loading the libraries"):
        from attnport.engines.doctor import diagnose
        from attnport.validate.machine import this_machine

        machine, engines = this_machine(), diagnose()
    if as_json:
        _print_json(machine, engines)
        return
    say(f"{machine.cpu or machine.platform}, {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.1f} GiB, Python {machine.python}")  # fmt: skip
    say(f"GPU: {', '.join(machine.gpus) or 'none'}")
    say(", ".join(f"{name} {version}" for name, version in machine.versions.items()))
    show_table(
        ("engine", "what it is", "builds", "runs", "on", "what is missing, and what supplies it"),
        map(_cells, engines),
    )


def _print_json(machine: Machine, engines: tuple[EngineDiagnosis, ...]) -> None:
    import json

    content = {
        "machine": machine.model_dump(),
        "engines": [engine.model_dump() for engine in engines],
    }
    say(json.dumps(content, indent=2))


def _cells(engine: EngineDiagnosis) -> tuple[str, ...]:
    return (
        engine.kind,
        engine.summary,
        "yes" if engine.buildable else "no",
        "yes" if engine.usable else "no",
        engine.device,
        f"{engine.missing}: {engine.remedy}" if engine.missing else "",
    )
