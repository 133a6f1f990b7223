"""`attnport inspect`: what an ONNX file, a bundle or a plan holds; changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.fuse_command import Require, exit_code
from attnport.cli.inspection_tables import show_inspection, show_plan
from attnport.cli.options import Json
from attnport.cli.screen import progress_bar, say
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.engines.plan import EnginePlan
    from attnport.export.records import Inspection

Target = Annotated[
    Path, typer.Argument(metavar="FILE|BUNDLE", help="An ONNX file, a bundle's folder, or a plan.")
]


def inspect(target: Target, require: Require = False, as_json: Json = False) -> None:
    """Show every attention and projection group, and whether it is recognised, merged or fused.

    \b
    attnport inspect model.onnx              any ONNX file, not only one of ours
    attnport inspect build/mh --json         for programs: attentions, projection_groups
    attnport inspect model.onnx --require    for CI: exits 1 unless all is recognised and merged
    attnport inspect build/mh/model.tensorrt-rtx.plan
    """
    if not target.exists():
        raise UsageError(f"{target} does not exist: give an ONNX file, a bundle or a plan")
    if target.name.endswith((".plan", ".plan.json")):
        if require:
            raise UsageError(
                f"--require is about ONNX files, and {target} is a plan: "
                "`attnport validate BUNDLE --require FILE` judges plans"
            )
        _show_plan_file(target, as_json)
        return
    from attnport.export.bundle import Bundle
    from attnport.export.onnx_file import inspect_model

    path = Bundle.load(target).model_path if target.is_dir() else target
    with progress_bar(f"reading {path}"):
        found = inspect_model(path)
    if as_json:
        say(found.model_dump_json(indent=2))
    else:
        say(str(path))
        show_inspection(found.attentions, found.projection_groups)
    if require:
        _exit_unless_complete(found)


def _exit_unless_complete(found: Inspection) -> None:
    done = [info.recognised for info in found.attentions]
    done += [group.merged for group in found.projection_groups]
    if code := exit_code(done):
        raise typer.Exit(code)


def _show_plan_file(path: Path, as_json: bool) -> None:
    from attnport.engines.plan_file import load_plan

    plan = load_plan(path)
    if as_json:
        _print_plan_json(plan)
    else:
        show_plan(plan)


def _print_plan_json(plan: EnginePlan) -> None:
    """The FusionReport at the top, where programs look for attentions in a file's JSON, too."""
    import json

    content = plan.model_dump(mode="json")
    fusion = content.pop("fusion") or {"attentions": [], "projection_groups": []}
    say(json.dumps({**fusion, "plan": content}, indent=2))
