"""`attnport export`: from a module to a bundle, and to an engine if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnport.axes import parse_axis
from attnport.cli.build_command import build_and_show
from attnport.cli.inspection_tables import show_inspection
from attnport.cli.options import Engines, known_engines, pairs, whole_numbers
from attnport.cli.screen import progress_bar, say, warn

if TYPE_CHECKING:
    from attnport.export.bundle import Bundle

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A name from `attnport models`, package.module:factory, or path.py:factory.",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", help="float32, float16 or bfloat16; the module's by default."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A size or keyword of the model; repeatable."),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME:DTYPE[DIMS]=ROLE",
        help="For your own module: an input in forward's order, such as x:float32[batch,seq,64] or "
        "mask:bool[batch,1,1,seq]=mask; repeatable.",
    ),
]
AxisRange = Annotated[
    list[str] | None,
    typer.Option(
        "--axis",
        metavar="NAME=MIN:OPT:MAX",
        help="The sizes that an axis may take, or total=past+seq of one that is as long as others "
        "together; repeatable.",
    ),
]
FormOption = Annotated[
    Literal["pattern", "attention"],
    typer.Option(help="Write attention as simple operators, or as the ONNX Attention operator."),
]
Opset = Annotated[
    int | None, typer.Option(metavar="N", help="The lowest that the form needs, by default.")
]
Title = Annotated[
    str | None, typer.Option("--name", metavar="TEXT", help="What reports call the model.")
]
CaseSize = Annotated[
    list[str] | None,
    typer.Option("--case-size", metavar="AXIS=N", help="No case exceeds this size; repeatable."),
]
MaxCases = Annotated[
    int | None, typer.Option("--max-cases", min=0, metavar="N", help="How many cases at most.")
]


def export(
    name: Name,
    out: Out,
    dtype: Dtype = None,
    sizes: Set = None,
    inputs: Input = None,
    axes: AxisRange = None,
    form: FormOption = "pattern",
    opset: Opset = None,
    title: Title = None,
    case_sizes: CaseSize = None,
    max_cases: MaxCases = None,
    engines: Engines = None,
) -> None:
    """Export a model to a bundle: model.onnx with merged QKV, and cases to prove it with.

    \b
    attnport export multi-head --out build/mh
    attnport export multi-head --set d_model=256 --set num_heads=4 --dtype float16 --out build/mh
    attnport export decoder-block-512-8 --axis seq=1:256:2048 --out build/decoder

    Your own module, from a file or an installed package. A factory may also return
    (module, args, dynamic_shapes), and then needs no --input:

    \b
    attnport export my_model.py:make --out build/mine \\
        --input 'x:float32[batch,seq,64]' --axis batch=1:2:8 --axis seq=1:128:512

    With --engine the engine's plan is built beside the .onnx, and what fused is shown:

    \b
    attnport export multi-head --dtype float16 --engine tensorrt-rtx --out build/mh
    python -m attnport.export multi-head --dtype float16 --engine tensorrt-rtx --out build/mh
    """
    kinds = known_engines(engines)
    ranges = [parse_axis(text) for text in axes or ()]
    keywords = pairs(sizes, "--set", "d_model=256")
    caps = whole_numbers(pairs(case_sizes, "--case-size", "seq=32"), "--case-size")

    from attnport.models.sources import spec_from_source
    from attnport.pipeline_run import bundle_from_spec

    with progress_bar(f"exporting {name}") as tell:
        bundle = bundle_from_spec(
            spec_from_source(name, keywords, inputs or (), ranges),
            out,
            name=title,
            dtype=dtype,
            form=form,
            opset=opset,
            case_sizes=caps,
            max_cases=max_cases,
            progress=tell,
        )
    _show_bundle(bundle)
    for kind in kinds:
        build_and_show(bundle, kind, None)


def _show_bundle(bundle: Bundle) -> None:
    manifest = bundle.manifest
    files = [bundle.model_path, bundle.model_path.with_name("model.onnx.data")]
    kib = sum(file.stat().st_size for file in files if file.is_file()) / 2**10
    size = f"{kib:.0f} KiB" if kib < 2**10 else f"{kib / 2**10:.1f} MiB"
    say(f"{bundle.model_path}  {manifest.dtype}, opset {manifest.opset}, {size} with weights")
    for done in manifest.passes:
        say(f"  {done.name}: {done.changed} changed")
        for note in done.notes:
            say(f"    {note}")
    show_inspection(manifest.attentions, manifest.projection_groups)
    for cache in manifest.caches:
        say(f"cache: {cache.input} -> {cache.output} ({cache.kind}, axis {cache.axis})")
    names = ", ".join(case.name for case in manifest.cases)
    say(
        f"{len(manifest.cases)} cases: {names}" if names else "no case, so nothing to compare with"
    )
    if manifest.cases_left_out:
        say(f"left out for their size or number: {', '.join(manifest.cases_left_out)}")
    for warning in manifest.warnings:
        warn(warning)
    why = _why_nothing_is_proved(bundle)
    if why:
        warn(f"no case can prove anything: {why}")


def _why_nothing_is_proved(bundle: Bundle) -> str:
    """What is wrong with the module itself, where it keeps every case from being compared."""
    from attnport.validate.bound import incomparable

    known = [one for case in bundle.manifest.cases for one in case.references.values()]
    reasons = [incomparable(one) for one in known]
    return reasons[0] if reasons and all(reasons) else ""
