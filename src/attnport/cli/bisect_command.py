"""`attnport bisect`: the first node whose output leaves its bound."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from attnport.cli.options import BundlePath, Json
from attnport.cli.screen import progress_bar, say
from attnport.errors import UsageError

Engine = Annotated[
    str,
    typer.Option("--engine", "-e", metavar="KIND", help="The engine that gives wrong numbers."),
]
CaseName = Annotated[
    str | None,
    typer.Option("--case", metavar="NAME", help="The case to look at; a small one by default."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="What the module is made from, where the bundle does not say: a registry name, "
        "package.module:factory or path.py:factory.",
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        "--memory", metavar="MIB", min=1, help="What the tensors held at once may take, in MiB."
    ),
]


def bisect(
    bundle: BundlePath,
    engine: Engine = "ort-cpu",
    case: CaseName = None,
    model: Model = None,
    memory: Memory = 1024,
    as_json: Json = False,
) -> None:
    """Find the first node of a graph whose output leaves its bound, and where it comes from.

    First the graph is compared with the module, both in float64; then the engine with the graph.
    The node is named with the submodule and the source line that it was exported from. For
    TensorRT the graph is cut behind each node and built again, so it takes a while.

    \b
    attnport bisect build/mh
    attnport bisect build/mh --engine tensorrt-rtx --case between-dead-row

    Exit codes: 0 nothing leaves its bound, 1 a node does, 2 bad input.
    """
    from attnport.export.bundle import Bundle
    from attnport.models.sources import module_from_source
    from attnport.validate.bisect import bisect as bisected

    whole = Bundle.load(bundle)
    source = model or whole.manifest.source
    if not source:
        raise UsageError(
            f"bundle {bundle} does not say what its module is made from: give it as --model"
        )
    module = module_from_source(source)
    with progress_bar(f"bisecting {whole.name}") as tell:
        found = bisected(whole, engine, module, case=case, memory_bytes=memory << 20, tell=tell)
    say(json.dumps(asdict(found), indent=2) if as_json else found.message)
    raise typer.Exit(int(bool(found.side)))
