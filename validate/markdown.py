"""A report as Markdown, short: what a pull request's summary page shows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from attnport.errors import UsageError
from attnport.validate import html_view
from attnport.validate.covered import statement
from attnport.validate.report import Report

_MOST_REASONS = 10
_MARKS = {"passed": "✅", "failed": "❌", "not run": "⚠️", "not required": "◽"}
_VERDICTS = {"proved": "passed", "failed": "failed", "not proved": "not run"}
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def markdown_from_report(report: Report) -> str:
    """Verdict, reasons, the table by model and dtype, and what was covered."""
    mark = _MARKS[_VERDICTS[report.verdict]]
    lines = [f"## {mark} attnport: {report.verdict}", "", html_view.answer(report), ""]
    reasons = html_view.reasons(report)
    for reason in reasons[:_MOST_REASONS]:
        lines.append(
            f"- {_MARKS[reason.status]} **{_cell(reason.subject)}**: {_cell(reason.message)}"
        )
    if len(reasons) > _MOST_REASONS:
        lines.append(f"- and {len(reasons) - _MOST_REASONS} more")
    lines += ["", *_table(report), ""]
    covered = statement(report)
    if covered:
        lines += ["<details><summary>What was proved, and what was not</summary>", ""]
        lines += [f"- {_cell(text)}" for text in covered]
        lines += ["", "</details>", ""]
    machine = report.machine
    lines.append(f"<sub>{report.created} · {_cell(machine.cpu)}, {machine.cores} cores</sub>")
    return "\n".join(lines) + "\n"


def write_markdown(report: Report, path: str | Path) -> None:
    """Writes the file, whole or not at all.

    Raises:
        UsageError: If it cannot be written.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(markdown_from_report(report), "utf-8")
        beside.replace(target)
    except OSError as err:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise UsageError(
            f"the report cannot be written to {target} ({err.strerror}): name another file"
        ) from err


def append_step_summary(report: Report) -> None:
    """Adds the summary to the page of a GitHub Actions run; nothing outside of one.

    Raises:
        UsageError: If the file that GitHub names cannot be written.
    """
    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(markdown_from_report(report))
    except OSError as err:
        raise UsageError(
            f"{STEP_SUMMARY} names {path}, which cannot be written ({err.strerror}): unset it"
        ) from err


def _table(report: Report) -> Iterable[str]:
    yield "| | model | dtype | parity | QKV merged | attention fused into | causal | kernels | speed |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in html_view.rows(report):
        one = row.summary
        cells = (
            _MARKS[row.mark],
            one.model,
            one.dtype,
            "<br>".join(map(_cell, one.parity)),
            one.qkv_merged,
            "<br>".join(map(_cell, one.fused_into)),
            one.causal,
            "<br>".join(f"{count} {engine}" for engine, count in one.kernels.items()),
            "<br>".join(_cell(text) for text, _ in row.speed),
        )
        yield "| " + " | ".join(cell or "-" for cell in cells) + " |"


def _cell(text: str) -> str:
    """What is no markup, and does not end a table's cell."""
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " "), ("*", "\\*")):
        text = text.replace(old, new)
    return text
