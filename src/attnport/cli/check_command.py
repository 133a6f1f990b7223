"""`attnport check`: whether this machine can run a plan, told before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnport.cli.options import Json
from attnport.cli.screen import progress_bar, say, show_table

Plan = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan that `attnport build` wrote.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read the file again, even if it looks unchanged.")
]


def check(plan: Plan, verify: Verify = False, as_json: Json = False) -> None:
    """Say whether this machine can run a plan: its version, its device, its library.

    TensorRT does not see the plan: a damaged one is found by its hash.

    \b
    attnport check build/mh/model.tensorrt-rtx.plan
    attnport check build/mh/model.tensorrt-rtx.plan --json

    Exit codes: 0 it runs here, 1 it does not, 3 this machine cannot tell (no device or no
    library), 2 the plan is damaged or none.
    """
    from attnport.engines.plan_check import check_plan

    with progress_bar("checking"):
        found = check_plan(plan, rehash=verify)
    if as_json:
        import json

        facts = [fact.model_dump() for fact in found.facts]
        content = {"plan": str(plan), "kind": found.plan.kind, "verdict": found.verdict}
        say(json.dumps({**content, "facts": facts}, indent=2))
    else:
        rows = [(fact.name, fact.status, fact.message) for fact in found.facts]
        show_table(("needs", "status", "what was found, and what to do"), rows)
        say(f"{plan}: {found.verdict}")
    raise typer.Exit(found.exit_code)
