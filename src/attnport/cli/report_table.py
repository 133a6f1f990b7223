"""A report in the terminal: a row for each model and dtype, then the answer and its reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnport.cli.screen import say, short_kernel, show_table

if TYPE_CHECKING:
    from attnport.validate.html_view import Row
    from attnport.validate.report import Report

_COLUMNS = (
    "model",
    "dtype",
    "verdict",
    "parity (outputs within bound)",
    "QKV merged",
    "attention fused into",
    "causal",
    "kernels",
    "speed (of fastest torch)",
)


def show_report(report: Report) -> None:
    """Prints the table, the verdict with its reasons, and what was only looked at."""
    from attnport.validate import html_view

    show_table("", _COLUMNS, map(_cells, html_view.rows(report)))
    say(f"{report.verdict}: {html_view.answer(report)}")
    for reason in html_view.reasons(report):
        say(f"  {reason.status}: {reason.subject}: {reason.message}")
    loose = html_view.loose_failures(report)
    if loose:
        say(f"  {loose} findings failed that no requirement covers: see the report")


def _cells(row: Row) -> tuple[str, ...]:
    summary = row.summary
    return (
        summary.model,
        summary.dtype,
        row.mark,
        _lines(summary.parity),
        summary.qkv_merged,
        _lines(map(short_kernel, summary.fused_into)),
        summary.causal,
        _lines(f"{count} {engine}" for engine, count in summary.kernels.items()),
        _lines(text for text, _ in row.speed),
    )


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts) or "-"
