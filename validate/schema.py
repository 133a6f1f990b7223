"""The JSON schema of `report.json`, made from the models and kept as a file beside this one.

`python -m attnport.validate.schema` writes the file again after a model was changed.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from attnport.validate.finding import Finding
from attnport.validate.report import Machine, Measurement, Report

SCHEMA = Path(__file__).with_name("report.schema.json")


def report_schema() -> dict[str, Any]:
    """The schema, with what the docstrings say of each field as its description."""
    schema = Report.model_json_schema(mode="serialization")
    inner: tuple[type[BaseModel], ...] = (Finding, Machine, Measurement)
    parts: list[tuple[type[BaseModel], dict[str, Any]]] = [(Report, schema)]
    parts += [(model, schema["$defs"][model.__name__]) for model in inner]
    for model, part in parts:
        part["description"] = (inspect.getdoc(model) or "").partition("\n")[0]
        for name, text in _attributes(model):
            part["properties"][name]["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """The content of the file."""
    return json.dumps(report_schema(), indent=2, ensure_ascii=False) + "\n"


def _attributes(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The entries of a google style "Attributes:" section."""
    doc = inspect.getdoc(model) or ""
    _, _, section = doc.partition("Attributes:\n")
    for entry in re.split(r"\n(?=    \w)", "\n" + section):
        name, colon, text = entry.strip().partition(":")
        if colon and name in model.model_fields:
            yield name, " ".join(text.split())


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), "utf-8")
