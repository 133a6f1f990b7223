"""`attnport build`: from a bundle to an engine, and what the engine says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.inspection_tables import show_plan
from attnport.cli.options import BundlePath, Engines, known_engines
from attnport.cli.screen import progress_bar, say, warn
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.engines.build_options import BuildOptions
    from attnport.export.bundle import Bundle

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Where the plan goes; the bundle by default."),
]
Profile = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXES",
        help="Ranges of one optimization profile, such as seq=2:128:512 or seq=1; repeatable.",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--sm",
        metavar="CC",
        help="A compute capability to build for, such as 89 (tensorrt-rtx); repeatable.",
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="The most memory a kernel may use besides, such as 256MiB."),
]
Level = Annotated[
    int | None,
    typer.Option(
        "--optimization-level", metavar="N", help="0 builds fastest, 5 searches longest."
    ),
]
TimingCache = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Timings of kernels, read if there and written (tensorrt)."),
]
VersionCompatible = Annotated[
    bool, typer.Option("--version-compatible", help="For later versions of TensorRT, too.")
]
WeightStripped = Annotated[
    bool, typer.Option("--weight-stripped", help="A plan without its weights.")
]
Refittable = Annotated[
    bool, typer.Option("--refittable", help="A plan whose weights can be replaced.")
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.safetensors",
        help="Other weights for the same module: --out gets a bundle with them, not exported "
        "again, and the engine.",
    ),
]
Form = Annotated[
    str,
    typer.Option(
        metavar="FORM",
        help="How the graph is given to TensorRT: as-written (or pattern), batch-first, "
        "sequence-first, separate; table, which chooses by rule; auto, which builds all and keeps the one "
        "with the fewest kernels.",
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read every file again, even if it looks unchanged.")
]


def build(
    bundle: BundlePath,
    engines: Engines = None,
    out: Out = None,
    profile: Profile = None,
    sm: Target = None,
    workspace: Workspace = None,
    optimization_level: Level = None,
    timing_cache: TimingCache = None,
    version_compatible: VersionCompatible = False,
    weight_stripped: WeightStripped = False,
    refittable: Refittable = False,
    form: Form = "table",
    weights: Weights = None,
    verify: Verify = False,
) -> None:
    """Build an engine from a bundle, and show which kernel each attention became.

    A plan that was built before from the same things is found and not built again.

    \b
    attnport build build/mh --engine tensorrt-rtx       needs no GPU
    attnport build build/mh --engine ort-cpu            loads the graph, to know that it does
    attnport build build/mh -e tensorrt-rtx --sm 89 --sm 120
    attnport build build/mh -e tensorrt-rtx --profile seq=2:128:512 --profile seq=1
    attnport build build/mh -e tensorrt-rtx --form auto     fewest kernels of all forms
    attnport build build/mh -e tensorrt-rtx --weights tuned.safetensors --out build/tuned
    """
    kinds = known_engines(engines)
    if not kinds:
        raise UsageError("no engine was named: add --engine, such as --engine tensorrt-rtx")
    from attnport.engines.build_options import (
        BuildOptions,
        parse_bytes,
        parse_profile,
        parse_target,
    )

    options = BuildOptions.checked(
        profiles=tuple(map(parse_profile, profile or ())),
        targets=tuple(map(parse_target, sm or ())),
        workspace_bytes=None if workspace is None else parse_bytes(workspace),
        optimization_level=optimization_level,
        timing_cache=timing_cache,
        version_compatible=version_compatible,
        weight_stripped=weight_stripped,
        refittable=refittable,
        form="as-written" if form == "pattern" else form,
    )
    from attnport.export.bundle import Bundle

    whole = Bundle.load(bundle, rehash=verify)
    if weights is not None:
        whole, out = _with_weights(whole, weights, out), None
    for kind in kinds:
        build_and_show(whole, kind, out, options, verify=verify)


def build_and_show(
    bundle: Bundle,
    kind: str,
    out: Path | None,
    options: BuildOptions | None = None,
    *,
    verify: bool = False,
) -> None:
    """Builds one engine with a progress bar, and prints its FusionReport."""
    from attnport.engines.build import build_engine

    with progress_bar(f"building {kind}") as tell:
        plan = build_engine(bundle, kind, out=out, options=options, rehash=verify, progress=tell)
    show_plan(plan)
    for warning in plan.warnings:
        warn(warning)


def _with_weights(bundle: Bundle, weights: Path, out: Path | None) -> Bundle:
    if out is None:
        raise UsageError("--weights makes another bundle: say where, with --out DIR")
    from attnport.models.sources import module_from_source

    if not bundle.manifest.source:
        raise UsageError(
            f"{bundle.path} does not say which module it came from, so weights cannot be matched "
            "to it: export the module with the new weights"
        )
    from attnport.engines.replace_weights import load_weights, replace_weights

    module = module_from_source(bundle.manifest.source)
    with progress_bar("replacing weights") as tell:
        replaced = replace_weights(bundle, module, load_weights(weights), out, progress=tell)
    say(f"{replaced.path}: the same graph with the weights of {weights}")
    return replaced
