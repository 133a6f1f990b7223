"""What a repository requires of its models: `attnport.yaml`, or [tool.attnport] in pyproject.toml.

engines: [ort-cpu, tensorrt-rtx]
cases: further                # beside those that the bundle carries
baseline: reports/main.json
require:
  parity: [ort-cpu]
  latency: {ort-cpu: 1.1}
  worse_by_percent: 10

A file without `require`, `engines`, `cases` and `baseline` is read as the requirements themselves.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import yaml
from pydantic import ValidationError

from attnport.engines.kinds import engine_kind
from attnport.errors import UsageError
from attnport.export.records import Record
from attnport.validate.requirements import Requirements, meant

FILES = ("attnport.yaml", "pyproject.toml")


class Gates(Record):
    """What is looked at, and what must hold.

    Attributes:
        engines: The kinds to judge; those that `require` names are added.
        cases: "shipped", or "further" for the generated ones, too.
        baseline: A report to compare with; None for none.
        require: What the verdict depends on.
    """

    engines: tuple[str, ...] = ()
    cases: Literal["shipped", "further"] = "shipped"
    baseline: Path | None = None
    require: Requirements = Requirements()


def load_gates(path: str | Path) -> Gates:
    """Reads a YAML file, or the [tool.attnport] table of a TOML file.

    Raises:
        UsageError: If it cannot be read, or holds something else.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        content: object = (
            _tool_table(tomllib.loads(text)) if file.suffix == ".toml" else yaml.safe_load(text)
        )
    except OSError as err:
        raise UsageError(
            f"{file} cannot be read ({err.strerror}): name a YAML file, or a pyproject.toml"
        ) from err
    except (UnicodeDecodeError, yaml.YAMLError, tomllib.TOMLDecodeError) as err:
        raise UsageError(f"{file} cannot be read: {err}") from err
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no requirements: give {', '.join(Gates.model_fields)}")
    return _gates(content, str(file))


def find_gates(folder: Path) -> tuple[Gates, Path] | None:
    """The file of a folder that states requirements, `attnport.yaml` first; None without one.

    Raises:
        UsageError: If the file is there and wrong.
    """
    for name in FILES:
        file = folder / name
        if file.is_file() and (file.suffix == ".yaml" or _has_table(file)):
            return load_gates(file), file
    return None


def _has_table(file: Path) -> bool:
    try:
        return _tool_table(tomllib.loads(file.read_text("utf-8"))) is not None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False  # a broken pyproject.toml that never spoke of us is not for us to report


def _tool_table(content: dict[str, object]) -> object:
    tools = content.get("tool")
    return tools.get("attnport") if isinstance(tools, dict) else None


def _gates(content: dict[str, object], where: str) -> Gates:
    if "models" in content:
        raise UsageError(
            f"{where} holds `models`, so it is a pipeline: `attnport run {where}`, or name a file "
            "with requirements alone"
        )
    if not set(content) & set(Gates.model_fields):
        return Gates(require=Requirements.from_mapping(content, where))
    _refuse_unknown(content, where)
    required = content.get("require") or {}
    if not isinstance(required, dict):
        raise UsageError(f"{where}: require is {required!r}: give requirements by name")
    require = Requirements.from_mapping(required, f"{where}: require")
    try:
        gates = Gates.model_validate({**content, "require": require})
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where}: {place} is {first['input']!r}: {first['msg']}") from err
    for kind in gates.engines:
        engine_kind(kind)
    return gates


def _refuse_unknown(content: dict[str, object], where: str) -> None:
    known = tuple(Gates.model_fields)
    unknown = [key for key in content if key not in known]
    if unknown:
        said = ", ".join(f"{key!r}{meant(str(key), known)}" for key in unknown)
        what = "is no key" if len(unknown) == 1 else "are no keys"
        raise UsageError(f"{where}: {said} {what}; valid: {', '.join(known)}")
