"""The commands, gathered; what each does is in the module named after it."""

from __future__ import annotations

from typing import Annotated

import typer

from attnport._version import __version__
from attnport.cli.bisect_command import bisect
from attnport.cli.build_command import build
from attnport.cli.check_command import check
from attnport.cli.doctor_command import doctor
from attnport.cli.explain_command import explain
from attnport.cli.export_command import export
from attnport.cli.fuse_command import fuse
from attnport.cli.generate_command import generate
from attnport.cli.inspect_command import inspect
from attnport.cli.models_command import models
from attnport.cli.run_command import run
from attnport.cli.serve_command import serve
from attnport.cli.shard_command import shard
from attnport.cli.triton_command import triton
from attnport.cli.validate_command import validate

# Plain help: examples come out as they must be typed, brackets included, and it is quick.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command, in_one_line in (
    (models, "List the models that can be exported by name."),
    (export, "Export a model to an ONNX bundle."),
    (build, "Build an engine, and show what fused."),
    (validate, "Prove engines against their module."),
    (bisect, "Find the node that goes wrong."),
    (explain, "Say what a check means."),
    (run, "Export, build and prove all of a file."),
    (generate, "Continue token ids, one at a time."),
    (serve, "Serve proved bundles over HTTP."),
    (shard, "Split a bundle over devices by heads."),
    (triton, "Write a repository for Triton."),
    (fuse, "Merge and rewrite the attentions of a file."),
    (inspect, "Show the attentions of a file."),
    (check, "Say whether a plan runs here."),
    (doctor, "Say what this machine can do."),
):
    app.command(command.__name__, short_help=in_one_line)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnport {__version__}")
        raise typer.Exit


@app.callback()
def attnport(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Its version."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show the traceback of an error; stands anywhere.")
    ] = False,
) -> None:
    """Attention from PyTorch to ONNX and TensorRT, with proof that it arrived.

    \b
    attnport models                                            what can be exported by name
    attnport export multi-head --out build/mh                  module -> ONNX bundle
    attnport build build/mh --engine tensorrt-rtx              bundle -> engine, and what fused
    attnport validate build/mh --engine ort-cpu                engine against module -> verdict
    attnport run examples/demo.yaml                            all of it, for several models
    attnport generate build/lm --prompt-ids 1,2,3              token ids in, token ids out
    attnport serve build/mh                                    the bundle behind HTTP
    attnport shard build/mh --ranks 2 --out build/mh-2         one bundle for each device
    attnport triton build/mh --out models                      a repository for Triton's server
    attnport fuse model.onnx fused.onnx                        QKV merged, in any ONNX file
    attnport inspect model.onnx                                the attentions of any ONNX file
    attnport check build/mh/model.tensorrt-rtx.plan            whether this machine can run it
    attnport doctor                                            what this machine can do

    Exit codes: 0 proved or done, 1 a requirement failed, 2 usage or bad input, 3 not proved
    (something required could not be checked here), 4 an error of attnport, 130 interrupted.
    """
