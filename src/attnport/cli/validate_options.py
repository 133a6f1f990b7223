"""The options of `attnport validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Require = Annotated[
    Path | None,
    typer.Option(
        "--require",
        metavar="FILE",
        help="What the verdict depends on: a YAML file, or a pyproject.toml. By default "
        "attnport.yaml or [tool.attnport] of pyproject.toml in this folder, and without them "
        "parity of every engine that can run here, merged QKV, and fusion where there are kernels.",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.json", help="Write the report as JSON.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE.html", help="Write the report as a page.")
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE.xml", help="Write the report as JUnit XML.")
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="FILE.md", help="Write the report as a summary."),
]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE.json", help="An earlier report to compare with."),
]
Further = Annotated[
    bool,
    typer.Option(
        "--further", help="Generate the cases that hurt, too, and reopen and rebuild each engine."
    ),
]
Own = Annotated[
    list[str] | None,
    typer.Option(
        "--cases",
        metavar="FILE",
        help="Cases of your own: a .npz, a .safetensors, or a generator as path.py:function; "
        "may be repeated.",
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        "--memory", metavar="MIB", min=1, help="What one generated case may need at most, in MiB."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the generated cases.")]
Reproducers = Annotated[
    Path | None,
    typer.Option(
        "--reproducers",
        metavar="DIR",
        help="Where each failure leaves what shows it again; by default `reproducers` beside the "
        "report.",
    ),
]
Latency = Annotated[bool, typer.Option("--latency", help="Measure latency, too.")]
