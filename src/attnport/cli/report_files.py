"""The files that a report is written to: looked at before the proof, written after it."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.cli.screen import say
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.validate.report import Report


@dataclass(frozen=True)
class ReportFiles:
    """Where a report goes, in each form; None where that form was not asked for.

    Attributes:
        json: For programs.
        html: One page, with plots.
        junit: For CI systems.
        markdown: A summary.
    """

    json: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def paths(self) -> list[Path]:
        return [path for path in (self.json, self.html, self.junit, self.markdown) if path]

    def require_writable(self) -> None:
        """Tries every path, so that minutes of proving are not lost to a path.

        Raises:
            UsageError: If a file cannot be written there.
        """
        for path in self.paths():
            why = _why_not_writable(path)
            if why:
                raise UsageError(f"the report cannot be written to {path} ({why}): name another")

    def write(self, report: Report) -> None:
        """Writes every file, and the summary of a GitHub Actions run.

        Raises:
            UsageError: If one cannot be written.
        """
        from attnport.validate.markdown import append_step_summary, write_markdown

        if self.json:
            report.save(self.json)
        if self.html:
            from attnport.validate.html import write_html

            write_html(report, self.html)
        if self.junit:
            from attnport.validate.junit import write_junit

            write_junit(report, self.junit)
        if self.markdown:
            write_markdown(report, self.markdown)
        append_step_summary(report)

    def tell(self) -> None:
        """Says where the files are."""
        for path in self.paths():
            say(f"report: {path}")


def _why_not_writable(path: Path) -> str:
    """Tried, since a path that looks writable need not be; what was made for it is taken away."""
    if path.is_dir():
        return "it is a folder"
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as err:
        return err.strerror or type(err).__name__
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return ""
