"""A report in the terminal: a line for each model and dtype, then the answer and its reasons.

What is too long for a cell stands under the table as a numbered note, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnport.cli.screen import say, show_table

if TYPE_CHECKING:
    from attnport.validate.html_view import Row
    from attnport.validate.report import Report

_COLUMNS = (
    "model",
    "dtype",
    "verdict",
    "parity",
    "QKV merged",
    "attention fused into",
    "causal",
    "kernels",
    "speed",
)


@dataclass
class _Notes:
    """Numbered notes; the same text has the same number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def show_report(report: Report) -> None:
    """Prints the table, the verdict with its reasons, and what was only looked at."""
    from attnport.validate import html_view

    notes = _Notes()
    rows = html_view.rows(report)
    planned = {engine for row in rows for engine in row.summary.kernels}
    cells = [_cells(row, notes, several_plans=len(planned) > 1) for row in rows]
    show_table(_COLUMNS, cells)
    for text in notes.texts:
        say(f" {notes.mark(text)} {text}")
    if planned:
        say(f" kernels: that the plan runs ({', '.join(sorted(planned))})")
    if any(row.speed for row in rows):
        say(" speed: against the fastest torch form, where both run on the same device")
    say(f"\n{report.verdict}: {html_view.answer(report)}")
    for text in html_view.remarks(report):
        say(f"  {text}")
    for reason in html_view.reasons(report):
        say(f"  {reason.status}: {reason.subject}: {reason.message}")
    loose = html_view.loose_failures(report)
    if loose:
        say(f"  {loose} findings failed that no requirement covers: see the report")


def _cells(row: Row, notes: _Notes, *, several_plans: bool) -> tuple[str, ...]:
    summary = row.summary
    return (
        summary.model,
        summary.dtype,
        row.mark,
        _parity(summary.parity, summary.unproved, notes),
        summary.qkv_merged,
        _lines(_fused(cell, notes) for cell in summary.fused_into),
        summary.causal,
        _kernels(summary.kernels, several=several_plans),
        _lines(_speed(short, long, notes) for short, long in row.speed),
    )


def _parity(cells: Sequence[str], unproved: Sequence[str], notes: _Notes) -> str:
    """The score, if all engines that ran have the same; then a note names them."""
    engines: dict[str, list[str]] = {}
    missing = []
    for cell in cells:
        score, _, engine = cell.partition(" ")
        if "/" in score:
            engines.setdefault(score, []).append(engine)
        else:
            missing.append(cell)
    if len(engines) == 1:
        ((score, names),) = engines.items()
        where = f"on {', '.join(names)}"
        parts = [f"{score} {notes.mark('; '.join([where, *missing]))}"]
    else:
        parts = [f"{score} {', '.join(names)}" for score, names in engines.items()]
        parts += [notes.mark(text) for text in missing]
    return _lines(parts) + "".join(notes.mark(text) for text in _alike(unproved))


def _alike(unproved: Sequence[str]) -> list[str]:
    """The engines of which the same is said, in one sentence."""
    engines: dict[str, list[str]] = {}
    for text in unproved:
        engine, _, said = text.partition(": ")
        engines.setdefault(said, []).append(engine)
    return [f"{', '.join(names)}: {said}" for said, names in engines.items()]


def _speed(short: str, long: str, notes: _Notes) -> str:
    return notes.mark(long) if short.endswith("not compared") else short


def _fused(cell: str, notes: _Notes) -> str:
    count, _, said = cell.partition(" ")
    if "/" not in count:  # what is said of the graph, in words
        return cell
    if ":" in said:  # the engine, and why not
        return f"{count} {notes.mark(said)}"
    kernels = re.sub(r"_0x[0-9a-f]+", "", said).split(", ")  # the hashes are in the report
    return f"{count} {', '.join(dict.fromkeys(kernels))}"


def _kernels(counts: Mapping[str, int], *, several: bool) -> str:
    return _lines(f"{count} {kind}" if several else str(count) for kind, count in counts.items())


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts) or "-"
