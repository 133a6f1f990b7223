"""Whether a bundle was proved: its report is found, is of this export, and says so of this engine."""

from __future__ import annotations

from pathlib import Path

from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.validate.coverage import COVERAGE
from attnport.validate.report import Report

REPORT = "report.json"


class UnprovedError(UsageError):
    """A bundle is not served, because nothing says that it was proved."""


def require_proof(bundle: Bundle, engine: str, report: Path | None = None) -> Path:
    """The report that proves an engine made from a bundle.

    It is looked for in the bundle's folder, and then beside that folder, where `attnport run`
    leaves it. Other bundles in the same report do not matter.

    Args:
        bundle: What is to be served.
        engine: The kind of engine that is to serve it.
        report: A report somewhere else.

    Raises:
        UnprovedError: If there is none, or it is of another export, or it does not prove the
            parity of this engine, or the verdict on this bundle is another than "proved".
        UsageError: If the file is no report.
    """
    path = report or _find(bundle)
    if path is None:
        raise UnprovedError(
            f"{bundle.path} has no {REPORT} in it or beside it: {_remedy(bundle, engine)}"
        )
    found = Report.load(path)
    mine = [finding for finding in found.findings if finding.bundle == bundle.hash]
    if not mine:
        raise UnprovedError(
            f"{path} belongs to another export than {bundle.path} (hash {bundle.hash[:12]}): "
            f"{_remedy(bundle, engine)}"
        )
    verdict = found.model_copy(update={"findings": tuple(mine)}).verdict
    if verdict != "proved":
        raise UnprovedError(
            f"{path} says {verdict!r} of {bundle.path}: mend that first, or {_remedy(bundle, engine)}"
        )
    proved = {f.engine for f in mine if f.case == COVERAGE and f.status == "passed"}
    if engine not in proved:
        engines = ", ".join(sorted(proved)) or "no engine"
        raise UnprovedError(
            f"{path} proves parity of {engines}, and not of {engine}: {_remedy(bundle, engine)}"
        )
    return path


def _find(bundle: Bundle) -> Path | None:
    for folder in (bundle.path, bundle.path.resolve().parent):
        if (folder / REPORT).is_file():
            return folder / REPORT
    return None


def _remedy(bundle: Bundle, engine: str) -> str:
    file = bundle.path / REPORT
    return (
        f"run `attnport validate {bundle.path} --engine {engine} --report {file}`, or name its "
        "report with --report, or add --unproved to serve it all the same"
    )
