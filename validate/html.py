"""The report as one HTML file: no network, readable in print and without colour or JavaScript."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from attnport.errors import UsageError
from attnport.validate import html_view
from attnport.validate.covered import statement
from attnport.validate.plots import looks
from attnport.validate.plots_errors import error_plot
from attnport.validate.plots_latency import latency_plot
from attnport.validate.report import Report

_TEMPLATES = Path(__file__).parent / "templates"


def write_html(report: Report, path: str | Path) -> None:
    """Writes the page; the file appears whole or not at all.

    Raises:
        UsageError: If it cannot be written there.
    """
    target = Path(path)
    text = html_from_report(report)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, "utf-8")
        beside.replace(target)
    except OSError as err:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise UsageError(
            f"the report cannot be written to {target} ({err.strerror}): name another file"
        ) from err


def html_from_report(report: Report) -> str:
    """The page as text; the same report gives the same text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["numbers"] = html_view.numbers_text
    measured = [measurement.engine for measurement in report.measurements]
    engines = looks([*measured, *(finding.engine for finding in report.findings)])
    why = html_view.reasons(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        answer=html_view.answer(report),
        reasons=why[: html_view.MOST_REASONS],
        further_reasons=len(why) - html_view.MOST_REASONS,
        loose_failures=html_view.loose_failures(report),
        rows=html_view.rows(report),
        errors=error_plot(report.findings, engines),
        latency=latency_plot(report.measurements, engines),
        same_text=html_view.same_text(report),
        covered=statement(report),
    )
