"""Tables on stdout, and progress bars on stderr where that is a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnport.validate.progress import Progress

# Where there is no terminal whose width matters (a log of CI, a pipe), tables keep their lines.
_WIDTH_OF_FILES = 180


def say(text: str = "") -> None:
    """Prints a line as it is, never folded."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Says on stderr what the user should know, beside the result."""
    print(f"attnport: warning: {text}", file=sys.stderr, flush=True)


def short_kernel(name: str) -> str:
    """A kernel's name with its hash cut down: the whole one is in the report and in the plan."""
    return re.sub(r"(0x[0-9a-f]{6})[0-9a-f]+", r"\1…", name)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table and an empty line; a cell may have several lines."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a bracket is no markup
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(table, "")


@contextmanager
def progress_bar(label: str, *, in_lines: bool = False) -> Iterator[Progress]:
    """Gives what a step tells its progress to; the bar vanishes when the step is done.

    Args:
        label: What is being done.
        in_lines: Whether to say something where there is no terminal, too: a line for each part of
            a long step, so that the log of CI shows that it goes on.
    """
    if in_lines and not sys.stderr.isatty():
        yield _lines_of_progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import (
        Progress as Bar,
    )

    bar = Bar(
        TimeElapsedColumn(),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(label, total=1.0)

        def tell(what: str, fraction: float) -> None:
            bar.update(task, description=f"{label}: {what}", completed=fraction)

        yield tell


def _lines_of_progress() -> Progress:
    said = ""

    def tell(what: str, fraction: float) -> None:
        nonlocal said
        part = what.partition(": ")[0]
        if part != said:
            said = part
            print(f"{fraction:4.0%} {part}", file=sys.stderr, flush=True)

    return tell
