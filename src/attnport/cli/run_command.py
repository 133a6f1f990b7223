"""`attnport run`: a whole pipeline file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnport.cli.report_table import show_report
from attnport.cli.screen import progress_bar, say

File = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="The pipeline file.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="A folder in place of the file's `out`."),
]


def run(file: File, out: Out = None) -> None:
    """Export, build, prove and measure every model of a file; the exit code is the verdict.

    Bundles, report.json and report.html go to the file's `out`. A model that cannot be exported is
    a requirement that failed; the others are proved all the same.

    \b
    attnport run examples/demo.yaml
    attnport run examples/demo.yaml --out build/again

    \b
    out: build/mine
    engines: [torch-eager, torch-sdpa, ort-cpu, tensorrt-rtx]
    require: {parity: [ort-cpu]}
    models:
      - model: multi-head
        set: {d_model: 256, num_heads: 4}
        dtypes: [float32, float16]
      - model: my_model.py:make
        inputs: ['x:float32[batch,seq,64]']
        axes: {batch: [1, 2, 8], seq: [1, 128, 512]}

    Exit codes: 0 proved, 1 a requirement failed, 3 one could not be checked here, 2 bad input.
    """
    from attnport.pipeline import load_pipeline, runs_of

    pipeline = load_pipeline(file)
    if out is not None:
        pipeline = pipeline.model_copy(update={"out": out})
    with progress_bar(file.stem, in_lines=True) as tell:
        tell("reading the models", 0.0)
        runs = runs_of(pipeline, str(file))
        from attnport.pipeline_run import run_pipeline

        result = run_pipeline(pipeline, runs, tell)
    show_report(result.report)
    say(f"report: {result.html_path} (and {result.json_path.name} beside it)")
    raise typer.Exit(result.report.exit_code)
