"""The Report: every Finding, what was measured, and the verdict.

JSON is the truth; the HTML page and the table in the terminal are drawn from it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError, computed_field

from attnport.errors import UsageError
from attnport.export.records import Record
from attnport.validate.finding import Finding, Number

FORMAT_VERSION = 1

Verdict = Literal["proved", "failed", "not proved"]
EXIT_CODES: dict[Verdict, int] = {"proved": 0, "failed": 1, "not proved": 3}


class Machine(Record):
    """Where the numbers were measured.

    Attributes:
        platform: Operating system and architecture.
        cpu: The processor's model name.
        cores: How many cores this process may use.
        clock_mhz: Their clock as the system tells it; None where it does not.
        memory_bytes: Main memory.
        gpus: Name, driver, memory and highest clock of each; empty where there is none.
        python: Python's version.
        versions: The installed libraries that can change a result.
    """

    platform: str
    cpu: str
    cores: int
    clock_mhz: int | None = None
    memory_bytes: int
    gpus: tuple[str, ...]
    python: str
    versions: dict[str, str]


class Measurement(Record):
    """A measured figure that decides nothing: latency of an engine, cost of a build.

    Attributes:
        kind: "latency" or "build".
        model: The bundle's name.
        bundle: The bundle's hash.
        dtype: The bundle's dtype.
        engine: The kind of engine.
        case: The case that was timed; "build" for a build.
        values: For latency `median_us`, `p10_us`, `p90_us`, `p99_us`, `samples`, `threads`; and
            where it is compared `ratio`, `ratio_low`, `ratio_high` (95% bootstrap interval of
            this engine's median over that of `reference`, the fastest torch form), and
            `eager_ratio`, `eager_ratio_low`, `eager_ratio_high` over torch-eager.
            For a build `build_seconds`, `peak_memory_bytes`, `plan_bytes`, `kernels`.
        note: What a reader must know to quote it ("no difference", "A/A test").
    """

    kind: Literal["latency", "build"]
    model: str
    bundle: str
    dtype: str
    engine: str
    case: str
    values: dict[str, Number]
    note: str = ""


class Report(Record):
    """All findings and measurements of one run.

    Attributes:
        format_version: Of this file.
        created: When the run ended, ISO 8601 in UTC.
        machine: Where it ran.
        findings: What was checked: only these decide the verdict.
        measurements: What was measured and decides nothing.
    """

    format_version: int = FORMAT_VERSION
    created: str
    machine: Machine
    findings: tuple[Finding, ...]
    measurements: tuple[Measurement, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """What the requirements say: failed outranks not run, and none at all proves nothing."""
        required = [finding.status for finding in self.findings if finding.required]
        if "failed" in required:
            return "failed"
        if not required or "not run" in required:
            return "not proved"
        return "proved"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def save(self, path: str | Path) -> None:
        """Writes the report as JSON; the file appears whole or not at all.

        Raises:
            UsageError: If the file cannot be written.
        """
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(self.model_dump_json(indent=2) + "\n", "utf-8")
            beside.replace(target)
        except OSError as err:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise UsageError(f"the report cannot be written to {target}: {err}") from err

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Reads a report written by `save`.

        Raises:
            UsageError: If the file is not a report, or its verdict is not that of its findings.
        """
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            if not isinstance(content, dict):
                raise ValueError("it holds no JSON object")
            if "findings" not in content:
                raise ValueError("it holds no findings")
            _refuse_newer(content.get("format_version"), path)
            verdict = content.pop("verdict", "nothing")
            report = cls.model_validate(content)
        except UsageError:
            raise
        except (OSError, ValueError) as err:
            raise UsageError(f"{path} is not a report written by attnport: {_fault(err)}") from err
        if report.verdict != verdict:
            raise UsageError(
                f"{path} says {verdict!r} where its findings say {report.verdict!r}: "
                "it was edited; run the proof again"
            )
        return report

    @classmethod
    def merged(cls, reports: Iterable[Report]) -> Report:
        """One report of several from the same machine.

        Raises:
            UsageError: If there are none, or they were made on different machines.
        """
        reports = list(reports)
        if len({report.machine.model_dump_json() for report in reports}) != 1:
            raise UsageError(
                f"{len(reports)} reports cannot become one: give one or more from the same machine"
            )
        return reports[0].model_copy(
            update={
                "findings": tuple(f for report in reports for f in report.findings),
                "measurements": tuple(m for report in reports for m in report.measurements),
            }
        )


def _refuse_newer(version: object, path: str | Path) -> None:
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UsageError(
            f"{path} is of format {version}, and this attnport reads up to {FORMAT_VERSION}: "
            "upgrade attnport"
        )


def _fault(error: OSError | ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
