"""Pipeline files: several models, the engines to build, and what must hold.

out: build/demo
engines: [torch-eager, torch-sdpa, ort-cpu, tensorrt-rtx]
require: {parity: [ort-cpu]}
models:
  - model: multi-head-512-8
    dtypes: [float32, float16]
    require_in: {float16: {kernels: {tensorrt-rtx: 5}}}

Paths are relative to the current folder, as on the command line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
)

from attnport.axes import axis_of
from attnport.engines.build_options import BuildOptions, parse_profile, profile_axes
from attnport.engines.kinds import engine_kind
from attnport.errors import UsageError
from attnport.export.records import Form
from attnport.validate.requirements import Requirements

if TYPE_CHECKING:
    from attnport.models.spec import ModelSpec

GraphDtype = Literal["float32", "float16", "bfloat16"]
Content = dict[str, object]
# Told apart before it is read, so that what is wrong is said of the one that was meant.
AxisContent = Annotated[
    Annotated[tuple[int, int, int], Tag("min:opt:max")] | Annotated[str, Tag("sum")],
    Discriminator(lambda value: "sum" if isinstance(value, str) else "min:opt:max"),
]


class _Section(BaseModel):
    """Base of a part of the file: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LatencySection(_Section):
    """How latency is measured, after all parity, so that nothing disturbs it.

    Attributes:
        seconds: About how long, for all engines of one bundle together.
    """

    seconds: PositiveFloat = 3.0


class ModelSection(_Section):
    """One model, in one or more dtypes.

    Attributes:
        model: A name of the registry, package.module:factory or path.py:factory.
        name: What reports and folders call it; its own name by default.
        dtypes: The dtypes to export it in.
        sizes: Sizes of the model, written `set`.
        inputs: For a factory of a bare module: NAME:DTYPE[dim,dim,…]=role.
        axes: Ranges, min, opt and max, that replace the model's own; for one that is as long as
            others together, their sum as text.
        form: What attention is written as.
        opset: Of the graph; the lowest that the form needs by default.
        case_sizes: Sizes that no case exceeds, by axis.
        max_cases: How many cases at most.
        profiles: Optimization profiles of the plans, each as for `attnport build --profile`.
        latency: Whether to measure latency.
        engines: The engines, in place of the file's.
        require: Requirements, on top of the file's.
        require_in: More of them, by dtype.
    """

    model: str
    name: str = ""
    dtypes: tuple[GraphDtype, ...] = Field(("float32",), min_length=1)
    sizes: Content = Field(default_factory=dict, alias="set")
    inputs: tuple[str, ...] = ()
    axes: dict[str, AxisContent] = Field(default_factory=dict)
    form: Form = "pattern"
    opset: PositiveInt | None = None
    case_sizes: dict[str, PositiveInt] = Field(default_factory=dict)
    max_cases: PositiveInt | None = None
    profiles: tuple[str, ...] = ()
    latency: bool = True
    engines: tuple[str, ...] | None = None
    require: Content = Field(default_factory=dict)
    require_in: dict[GraphDtype, Content] = Field(default_factory=dict)


class Pipeline(_Section):
    """A whole file.

    Attributes:
        out: The folder for bundles and reports.
        engines: The kinds of engine to build, run and judge.
        models: The models, in the order of the report.
        require: What the verdict depends on, a field of Requirements each.
        latency: How latency is measured; null for not at all.
    """

    out: Path
    engines: tuple[str, ...] = Field(min_length=1)
    models: tuple[ModelSection, ...] = Field(min_length=1)
    require: Content = Field(default_factory=dict)
    latency: LatencySection | None = LatencySection()


@dataclass(frozen=True)
class Run:
    """One model in one dtype, ready to be exported and proved.

    Attributes:
        spec: The model.
        section: What the file says of it.
        name: What reports call it.
        dtype: The dtype to export it in.
        engines: The kinds of engine.
        require: What its verdict depends on.
        folder: Where its bundle goes.
        options: Of the plans that are built.
    """

    spec: ModelSpec
    section: ModelSection
    name: str
    dtype: GraphDtype
    engines: tuple[str, ...]
    require: Requirements
    folder: Path
    options: BuildOptions | None = None


def load_pipeline(path: str | Path) -> Pipeline:
    """Reads a pipeline file.

    Raises:
        UsageError: If it cannot be read, or holds what no pipeline holds; says what is valid.
    """
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as err:
        raise UsageError(f"{path} cannot be read ({err.strerror}): name a YAML file") from err
    except (UnicodeDecodeError, yaml.YAMLError) as err:
        raise UsageError(f"{path} cannot be read as YAML: {err}") from err
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no pipeline: give {', '.join(_keys(Pipeline))}")
    try:
        return Pipeline.model_validate(content)
    except ValidationError as err:
        said = "; ".join(_sentence(error["loc"], error["type"], error["msg"], error["input"])
                         for error in err.errors())  # fmt: skip
        raise UsageError(f"{path}: {said}") from err


def runs_of(pipeline: Pipeline, where: str = "the pipeline") -> list[Run]:
    """Everything that the file asks for, checked before any of it is done.

    Args:
        pipeline: The file.
        where: What to call it in an error.

    Raises:
        UsageError: If a model, engine or requirement does not exist, or two results would lie in
            one folder.
    """
    runs = [run for i, section in enumerate(pipeline.models)
            for run in _runs_of_model(pipeline, section, f"{where}: models[{i}]")]  # fmt: skip
    folders = [run.folder for run in runs]
    twice = {str(folder) for folder in folders if folders.count(folder) > 1}
    if twice:
        raise UsageError(
            f"{where} has several models for {', '.join(sorted(twice))}: give each a `name`"
        )
    return runs


def _runs_of_model(pipeline: Pipeline, section: ModelSection, where: str) -> Iterator[Run]:
    from attnport.models.sources import spec_from_source

    try:
        engines = section.engines or pipeline.engines
        for kind in engines:
            engine_kind(kind)
        spec = spec_from_source(
            section.model,
            {name: str(value) for name, value in section.sizes.items()},
            section.inputs,
            [axis_of(name, sizes) for name, sizes in section.axes.items()],
        )
        options = BuildOptions.checked(profiles=tuple(map(parse_profile, section.profiles)))
        profile_axes(options.profiles, spec.axes)
    except UsageError as err:
        raise UsageError(f"{where}: {err}") from err
    name = section.name or spec.name
    for dtype in dict.fromkeys(section.dtypes):
        content = _merged(pipeline.require, section.require, section.require_in.get(dtype, {}))
        yield Run(
            spec=spec,
            section=section,
            name=name,
            dtype=dtype,
            engines=engines,
            require=Requirements.from_mapping(content, f"{where}: require"),
            folder=pipeline.out / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{dtype}",
            options=options,
        )


def _merged(*layers: Mapping[str, object]) -> Content:
    return {field: value for layer in layers for field, value in layer.items()}


def _keys(section: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _sentence(loc: tuple[int | str, ...], kind: str, message: str, given: object) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    where = where.removeprefix(".")
    if kind == "missing":
        return f"{where} is missing"
    if kind != "extra_forbidden":
        return f"{where} is {given!r}: {message[0].lower()}{message[1:]}"
    valid = _keys(_section_at(loc))
    near = difflib.get_close_matches(str(loc[-1]), valid, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{where} is no key of a pipeline{meant}; valid here: {', '.join(valid)}"


def _section_at(loc: tuple[int | str, ...]) -> type[BaseModel]:
    inside: dict[str, type[BaseModel]] = {"models": ModelSection, "latency": LatencySection}
    return inside.get(str(loc[0]), Pipeline) if len(loc) > 1 else Pipeline
