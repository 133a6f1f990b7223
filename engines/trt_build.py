"""Builds a TensorRT plan in a child process, and puts it in its place only when it is whole.

A plan that lies there with the same key is taken as it is.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from attnport.axes import Axis
from attnport.engines.build_lock import build_folder, build_lock
from attnport.engines.build_options import BuildOptions, profile_axes
from attnport.engines.fusion import fusion_report
from attnport.engines.graph_facts import GraphFacts, read_graph_facts
from attnport.engines.layer_table import parse_inspections, parse_layer_tables
from attnport.engines.memory import memory_warning
from attnport.engines.plan import EnginePlan, FusionReport
from attnport.engines.plan_file import (
    find_plan,
    log_path,
    plan_path,
    record_path,
    save_record,
)
from attnport.engines.plan_key import build_device, plan_key
from attnport.engines.profiles import profile_from_axes
from attnport.engines.trt_failures import death, refusal
from attnport.engines.trt_process import run_builder
from attnport.engines.trt_request import LOG, PLAN, BuildRequest, BuildResult
from attnport.errors import BuildError
from attnport.export.bundle import Bundle

Progress = Callable[[str, float], None]
Library = Literal["tensorrt", "tensorrt_rtx"]


class TrtBuild:
    """One build: what was asked for, and from it the plan in its place.

    Args:
        bundle: The exported model.
        kind: "tensorrt" or "tensorrt-rtx".
        library: The module to build with.
        out: Where `model.<kind>.plan`, its record and its log go.
        options: What else was asked for.
        rehash: Whether to read files again that did not change since they were hashed last.

    Raises:
        UsageError: If the options do not fit the bundle.
        BuildError: If an axis of an input has no range.
        OSError: If the graph cannot be read.
    """

    def __init__(
        self,
        bundle: Bundle,
        kind: str,
        library: Library,
        out: Path,
        options: BuildOptions,
        *,
        rehash: bool = False,
    ) -> None:
        options.require_valid()
        self._bundle, self._kind, self._out = bundle, kind, out
        self._rehash = rehash
        self._axes = profile_axes(options.profiles, bundle.axes)
        ranges = tuple(profile_from_axes(bundle.manifest.inputs, axes) for axes in self._axes)
        timing_cache = options.timing_cache and options.timing_cache.resolve()
        self._request = BuildRequest(
            library=library,
            model_path=bundle.model_path.resolve(),
            profiles=tuple(filter(None, ranges)),
            options=options.model_copy(update={"timing_cache": timing_cache}),
        )
        self._key = plan_key(bundle, library, ranges, options, rehash=rehash)

    def found(self) -> EnginePlan | None:
        """The plan, if the one that lies in its place has the same key and is whole."""
        plan = find_plan(plan_path(self._out, self._kind), self._key, rehash=self._rehash)
        if plan is None:
            return None
        return plan.model_copy(update={"bundle_path": self._bundle.path, "cached": True})

    def run(self, progress: Progress) -> EnginePlan:
        """Builds, unless another process builds the same meanwhile.

        Raises:
            BuildError: If TensorRT refuses the graph or dies; nothing is left behind.
            GraphError: If the file is not a whole ONNX file.
        """
        facts = read_graph_facts(self._bundle.model_path)
        warning = memory_warning(self._bundle.model_path)
        if warning:
            progress(warning, 0.0)
        self._out.mkdir(parents=True, exist_ok=True)
        path = plan_path(self._out, self._kind)
        with build_lock(path, lambda: progress("waiting for another build of this plan", 0.0)):
            plan = self.found()
            if plan is None:
                with build_folder(self._out, self._kind) as folder:
                    plan = self._build(folder, facts, warning, progress)
                    _put_in_place(plan, folder, path)
        progress("done", 1.0)
        return plan

    def _build(
        self, folder: Path, facts: GraphFacts, warning: str, progress: Progress
    ) -> EnginePlan:
        bundle, library = self._bundle, self._request.library
        code, result = run_builder(self._request, folder, progress)
        if result is None:
            raise death(bundle.name, self._kind, code, folder)
        if result.failure is not None:
            raise refusal(bundle.name, self._kind, result.failure, self._request.options, folder)
        path = plan_path(self._out, self._kind)
        return EnginePlan(
            kind=self._kind,
            model=bundle.name,
            bundle_path=bundle.path,
            bundle_hash=bundle.hash,
            dtype=bundle.dtype,
            path=path,
            plan_sha256=result.plan_sha256,
            versions={library: result.library_version},
            build_seconds=result.build_seconds,
            peak_memory_bytes=result.peak_memory_bytes,
            fusion=self._fusion(result, folder / PLAN, facts),
            log_path=log_path(path),
            warnings=(warning,) if warning else (),
            key=self._key,
            options=self._request.options,
            profiles=tuple(map(_sizes, self._axes)),
            device=build_device(library),
        )

    def _fusion(self, result: BuildResult, plan: Path, facts: GraphFacts) -> FusionReport:
        manifest = self._bundle.manifest
        if result.layer_tables or not result.inspections:
            layers = parse_layer_tables(result.layer_tables)
        else:
            layers = parse_inspections(result.inspections)
        with (
            plan.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return fusion_report(
                manifest.attentions,
                manifest.projection_groups,
                self._bundle.dtype,
                layers,
                data,
                facts,
                self._axes,
            )


def _sizes(axes: dict[str, Axis]) -> dict[str, tuple[int, int, int]]:
    return {name: (axis.min, axis.opt, axis.max) for name, axis in axes.items()}


def _put_in_place(plan: EnginePlan, folder: Path, path: Path) -> None:
    """Renames the three files into place, the record last: without it a plan is not one."""
    save_record(plan, folder / record_path(path).name, home=path.parent)
    try:
        record_path(path).unlink(missing_ok=True)
        (folder / PLAN).replace(path)
        (folder / LOG).replace(log_path(path))
        (folder / record_path(path).name).replace(record_path(path))
    except OSError as err:
        raise BuildError(f"the plan cannot be put at {path} ({err}): name another folder") from err
