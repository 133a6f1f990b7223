"""`attnport validate`: engines against the module, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.options import Engines, known_engines
from attnport.cli.report_table import show_report
from attnport.cli.screen import progress_bar, say
from attnport.cli.validate_endpoint import TOKEN_VARIABLE, is_url, prove_url
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.engines.plan import EnginePlan
    from attnport.export.bundle import Bundle
    from attnport.validate.report import Report

BundleOrUrl = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE|URL", help="The folder that `attnport export` wrote, or a served endpoint."
    ),
]
ServedBundle = Annotated[
    Path | None, typer.Option("--bundle", metavar="BUNDLE", help="What the endpoint serves.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"Holds the endpoint's bearer token; or set {TOKEN_VARIABLE}.",
    ),
]
Require = Annotated[
    Path | None,
    typer.Option(
        "--require",
        metavar="FILE.yaml",
        help="What the verdict depends on; by default parity of every engine that can run here, "
        "merged QKV, and fusion where the engine has kernels for it.",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.json", help="Write the report as JSON.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE.html", help="Write the report as a page.")
]
Latency = Annotated[bool, typer.Option("--latency", help="Measure latency, too.")]


def validate(
    bundle: BundleOrUrl,
    engines: Engines = None,
    require: Require = None,
    report: Json = None,
    html: Html = None,
    latency: Latency = False,
    served: ServedBundle = None,
    token_file: TokenFile = None,
) -> None:
    """Prove engines against the module they came from; the exit code is the verdict.

    A plan that lies in the bundle is the one that is judged; others are built first. Without
    --engine, the engines that --require names are judged, or ort-cpu.

    \b
    attnport validate build/mh --engine ort-cpu --engine tensorrt-rtx
    attnport validate build/mh --require require.yaml --report build/report.json --html build/report.html
    attnport validate http://127.0.0.1:8000 --bundle build/mh

    A URL is an endpoint of the Open Inference Protocol, ours or Triton's: the bundle's cases go
    through it. Where it calls the model otherwise, write http://HOST:PORT/v2/models/NAME.

    A file of requirements holds, for example:

    \b
    parity: [ort-cpu]                        # or: all runnable
    parity_where_available: [tensorrt-rtx]   # where there is a device
    fusion: [tensorrt-rtx]                   # or: where kernels exist
    causal: true
    qkv: true
    kernels: {tensorrt-rtx: 5}

    Exit codes: 0 proved, 1 a requirement failed, 3 one could not be checked here, 2 bad input.
    """
    kinds = known_engines(engines)
    if is_url(bundle):
        _refuse_engine_options(engine=kinds, require=require, latency=latency)
        found = prove_url(bundle, served, token_file)
    elif served is not None:
        raise UsageError(f"--bundle goes with the URL of an endpoint, and {bundle} is none")
    else:
        found = _prove_engines(Path(bundle), kinds, require, latency=latency)

    from attnport.validate.html import write_html

    if report:
        found.save(report)
    if html:
        write_html(found, html)
    show_report(found)
    for path in filter(None, (report, html)):
        say(f"report: {path}")
    raise typer.Exit(found.exit_code)


def _refuse_engine_options(**given: object) -> None:
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name} is about engines of a bundle, and not about an endpoint: leave it out"
            )


def _prove_engines(path: Path, kinds: list[str], require: Path | None, *, latency: bool) -> Report:
    from attnport.api import prove
    from attnport.export.bundle import Bundle
    from attnport.validate.requirements import Requirements

    wanted = Requirements.load(require) if require else Requirements()
    kinds = kinds or ([] if wanted.kinds() else ["ort-cpu"])
    bundle = Bundle.load(path)
    plans = _plans(bundle, (*kinds, *wanted.kinds()))
    with progress_bar(f"proving {bundle.name}") as tell:
        return prove(bundle, kinds, require=wanted, plans=plans, latency=latency, progress=tell)


def _plans(bundle: Bundle, kinds: Sequence[str]) -> dict[str, EnginePlan]:
    """The plans that lie in the bundle: these are the ones that would be shipped."""
    from attnport.engines.kinds import engine_kind
    from attnport.engines.plan_file import load_plan, plan_path

    found = {}
    for kind in dict.fromkeys(kinds):
        path = plan_path(bundle.path, kind)
        if engine_kind(kind).builds_plan and path.exists():
            found[kind] = load_plan(path)
            say(f"{kind}: judging the plan {path}")
    return found
