"""What the process that asks for a TensorRT build and the one that does it tell each other.

This file and `trt_child` import nothing heavy: the child's start is part of every build.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attnport.engines.build_options import BuildOptions
from attnport.export.records import Record

REQUEST = "request.json"
RESULT = "result.json"
PLAN = "model.plan"
LOG = "build.log"
# What the parent writes to the child's stdin to end a build.
CANCEL = b"c"


class ShapeRange(Record):
    """The shapes that one profile allows for one input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class BuildRequest(Record):
    """One build, to be done in the folder that holds this request.

    Attributes:
        library: The module to build with; both have the same interface.
        model_path: The ONNX file; weights lie beside it.
        graph_path: The file whose graph is built with these weights, where it is another.
        profiles: The optimization profiles: a range for each input with a varying dimension.
        options: What else was asked for.
    """

    library: Literal["tensorrt", "tensorrt_rtx"]
    model_path: Path
    graph_path: Path | None = None
    profiles: tuple[dict[str, ShapeRange], ...] = ()
    options: BuildOptions = BuildOptions()


class BuildFailure(Record):
    """Why there is no plan, in TensorRT's words.

    Attributes:
        stage: What was being done.
        message: TensorRT's reason.
        node: The ONNX node that it is about; "" where TensorRT does not say.
        operator: That node's operator.
    """

    stage: Literal["parse", "profile", "option", "build", "cancelled"]
    message: str
    node: str = ""
    operator: str = ""


class BuildResult(Record):
    """What the child leaves beside the plan.

    Attributes:
        failure: Why there is no plan; None where there is one.
        layer_tables: The builder's messages that hold its table of layers.
        inspections: What the engine inspector says of each profile, as JSON; only where there is a
            device, and no table was logged.
        library_version: TensorRT's version.
        build_seconds: Wall time of parsing and building.
        peak_memory_bytes: The child's peak resident memory; None where the system does not say.
        plan_sha256: The plan's hash, taken before it was written; "" where there is none.
    """

    failure: BuildFailure | None
    layer_tables: tuple[str, ...] = ()
    inspections: tuple[str, ...] = ()
    library_version: str
    build_seconds: float
    peak_memory_bytes: int | None
    plan_sha256: str = ""
