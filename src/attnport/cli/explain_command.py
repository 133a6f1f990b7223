"""`attnport explain`: what a check means and what to try."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from attnport.cli.screen import say, show_table

CheckName = Annotated[
    str | None, typer.Argument(metavar="[CHECK]", help="Such as parity; without it, all of them.")
]


def explain(check: CheckName = None) -> None:
    """Say what a check means, how it is judged, and what to try when it fails.

    The name is the column "check" of a report, or what stands before a failure.

    \b
    attnport explain
    attnport explain parity
    """
    from attnport.validate.explain import EXPLANATIONS
    from attnport.validate.explain import explain as explained

    if check is None:
        rows = [(name, found.meaning) for name, found in EXPLANATIONS.items()]
        show_table(("check", "what it says"), rows)
        say("More: attnport explain CHECK")
        return
    found = explained(check)
    say(textwrap.fill(f"{check}: {found.meaning}", 96))
    say()
    say(textwrap.fill(found.judged, 96))
    say()
    say("What to try:")
    for remedy in found.remedies:
        say(textwrap.fill(remedy, 96, initial_indent="  - ", subsequent_indent="    "))
