"""`attnport build`: from a bundle to an engine, and what the engine says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.inspection_tables import show_plan
from attnport.cli.options import BundlePath, Engines, known_engines
from attnport.cli.screen import progress_bar, warn
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.export.bundle import Bundle

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Where the plan goes; the bundle by default."),
]


def build(bundle: BundlePath, engines: Engines = None, out: Out = None) -> None:
    """Build an engine from a bundle, and show which kernel each attention became.

    \b
    attnport build build/mh --engine tensorrt-rtx       needs no GPU
    attnport build build/mh --engine ort-cpu            loads the graph, to know that it does
    """
    kinds = known_engines(engines)
    if not kinds:
        raise UsageError("no engine was named: add --engine, such as --engine tensorrt-rtx")
    from attnport.export.bundle import Bundle

    whole = Bundle.load(bundle)
    for kind in kinds:
        build_and_show(whole, kind, out)


def build_and_show(bundle: Bundle, kind: str, out: Path | None) -> None:
    """Builds one engine with a progress bar, and prints its FusionReport."""
    from attnport.engines.build import build_engine

    with progress_bar(f"building {kind}") as tell:
        plan = build_engine(bundle, kind, out=out, progress=tell)
    show_plan(plan)
    for warning in plan.warnings:
        warn(warning)
