"""`attnport fuse`: an ONNX file with every attention merged and written anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.axes import axes_by_name, parse_axis
from attnport.cli.options import Json
from attnport.cli.screen import progress_bar, say, show_table
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.export.fuse import Fused
    from attnport.export.records import Form

Source = Annotated[Path, typer.Argument(metavar="IN.onnx", help="The file to read.")]
Out = Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The file to write.")]
FormName = Annotated[
    str,
    typer.Option(
        "--form", help="Attention as a pattern of simple operators, or as the ONNX operator."
    ),
]
Axes = Annotated[
    list[str] | None,
    typer.Option(
        "--axis", metavar="NAME=MIN:OPT:MAX", help="The sizes that an axis may take; repeatable."
    ),
]
Require = Annotated[
    bool,
    typer.Option("--require", help="Exit with 1 when one is left, and with 3 when there is none."),
]


def fuse(
    source: Source,
    out: Out,
    form: FormName = "pattern",
    axis: Axes = None,
    require: Require = False,
    as_json: Json = False,
) -> None:
    """Merge the projections of every attention, and write each in the canonical form.

    Says of each attention and group of projections what was done, or which node is in the way.

    \b
    attnport fuse model.onnx fused.onnx
    attnport fuse model.onnx fused.onnx --form attention     the ONNX operator (opset 23)
    attnport fuse model.onnx fused.onnx --axis seq=1:128:512 --require
    """
    axes = axes_by_name(map(parse_axis, axis or ()))
    _refuse_inside_bundle(out)
    from attnport.export.fuse import fuse_file

    with progress_bar(f"fusing {source}"):
        fused = fuse_file(source, out, form=_form(form), axes=axes)
    if as_json:
        say(fused.model_dump_json(indent=2))
    else:
        _show(fused)
    code = exit_code([outcome.done for outcome in fused.outcomes]) if require else 0
    if code:
        raise typer.Exit(code)


def _refuse_inside_bundle(out: Path) -> None:
    """A bundle whose files change is one no longer: bundle.json holds their hashes.

    Raises:
        UsageError: If the file to write is part of a bundle.
    """
    from attnport.export.bundle import MANIFEST, MODEL

    if out.name in (MODEL, f"{MODEL}.data") and (out.parent / MANIFEST).is_file():
        raise UsageError(
            f"{out} is part of the bundle {out.parent}, which would be no proof of anything then: "
            "write to another file, such as "
            f"{out.with_name('fused.onnx')} (a bundle's graph is fused already)"
        )


def exit_code(done: list[bool]) -> int:
    """Of --require: 0 where all is done, 1 where one is left, 3 where there is none."""
    if not done:
        return 3
    return 0 if all(done) else 1


def _form(name: str) -> Form:
    forms: dict[str, Form] = {"pattern": "pattern", "attention": "attention"}
    if name in forms:
        return forms[name]
    raise UsageError(f"--form {name!r} does not exist: take pattern or attention")


def _show(fused: Fused) -> None:
    say(f"{fused.path}: opset {fused.opset}, attention as {_in_words(fused)}")
    if not fused.outcomes:
        say("no attention was found in the graph; the rest is passed through")
        return
    show_table(
        ("what", "done", "how"),
        [(o.name, "yes" if o.done else "no", o.what) for o in fused.outcomes],
    )


def _in_words(fused: Fused) -> str:
    return "the canonical pattern" if fused.form == "pattern" else "the Attention operator"
