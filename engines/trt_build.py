"""Builds a TensorRT plan in a child process, and puts it in its place only when it is whole.

A plan that lies there with the same key is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from attnport.axes import Axis
from attnport.engines.build_lock import build_folder, build_lock
from attnport.engines.build_options import BuildOptions, profile_axes
from attnport.engines.graph_facts import read_graph_facts
from attnport.engines.lower_for_tensorrt import GraphForms, tensorrt_forms
from attnport.engines.memory import memory_warning
from attnport.engines.plan import EnginePlan, PlanLowering
from attnport.engines.plan_file import (
    find_plan,
    log_path,
    lowered_path,
    plan_path,
    record_path,
    save_record,
)
from attnport.engines.plan_key import build_device, plan_key
from attnport.engines.profiles import profile_from_axes
from attnport.engines.trt_request import LOG, PLAN, BuildRequest
from attnport.engines.trt_trial import Trial, best_trial, try_form
from attnport.errors import BuildError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.digests import file_sha256, remembered_sha256

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
        if plan is None or not _graph_is_whole(plan, rehash=self._rehash):
            return None
        return plan.model_copy(update={"bundle_path": self._bundle.path, "cached": True})

    def run(self, progress: Progress) -> EnginePlan:
        """Builds, unless another process builds the same meanwhile.

        Raises:
            BuildError: If TensorRT refuses the graph or dies; nothing is left behind.
            GraphError: If the file is not a whole ONNX file.
        """
        read_graph_facts(self._bundle.model_path)  # a file that is no graph is refused now
        warning = memory_warning(self._bundle.model_path)
        if warning:
            progress(warning, 0.0)
        self._out.mkdir(parents=True, exist_ok=True)
        path = plan_path(self._out, self._kind)
        with build_lock(path, lambda: progress("waiting for another build of this plan", 0.0)):
            plan = self.found()
            if plan is None:
                with build_folder(self._out, self._kind) as folder:
                    plan = self._build(folder, warning, progress)
                    _put_in_place(plan, folder, path)
        progress("done", 1.0)
        return plan

    def _build(self, folder: Path, warning: str, progress: Progress) -> EnginePlan:
        bundle, library = self._bundle, self._request.library
        best, lowering = self._best_form(folder, progress)
        path = plan_path(self._out, self._kind)
        if best.graph is not None:
            best.graph.replace(folder / lowered_path(path).name)
            lowering = lowering.model_copy(
                update={
                    "graph": lowered_path(path).name,
                    "graph_sha256": file_sha256(folder / lowered_path(path).name),
                }
            )
        for name in (PLAN, LOG):
            (best.folder / name).replace(folder / name)
        return EnginePlan(
            kind=self._kind,
            model=bundle.name,
            bundle_path=bundle.path,
            bundle_hash=bundle.hash,
            dtype=bundle.dtype,
            path=path,
            plan_sha256=best.result.plan_sha256,
            versions={library: best.result.library_version},
            build_seconds=best.result.build_seconds,
            peak_memory_bytes=best.result.peak_memory_bytes,
            fusion=best.fusion,
            log_path=log_path(path),
            warnings=(warning,) if warning else (),
            key=self._key,
            options=self._request.options,
            profiles=tuple(map(_sizes, self._axes)),
            device=build_device(library),
            lowering=lowering,
        )

    def _best_form(self, folder: Path, progress: Progress) -> tuple[Trial, PlanLowering]:
        """Builds the form asked for, or all and takes the one with the fewest kernels."""
        options = self._request.options
        forms = tensorrt_forms(self._bundle, refits=options.weight_stripped or options.refittable)
        if options.form == "auto":
            names, reason = forms.distinct(), ""
        elif options.form == "table":
            names, reason = [forms.chosen], forms.reason
        else:
            names, reason = [options.form], "it was asked for"
            if options.form not in forms.contents:
                raise UsageError(
                    f"{self._bundle.model_path} has no form {options.form}, since {forms.reason}"
                )
        trials = [
            self._try(forms, name, folder, _part_of(progress, number, len(names)))
            for number, name in enumerate(names)
        ]
        if options.form == "table" and trials[0].refused and names != ["as-written"]:
            # A rule is about what was measured; where it does not hold, the graph as it stands does.
            trials.append(self._try(forms, "as-written", folder, progress))
            reason = ""
        best = best_trial(trials)
        counts = {trial.form: trial.kernels for trial in trials}
        refused = {trial.form: trial.refused for trial in trials if trial.refused}
        return best, PlanLowering(
            form=best.form,
            reason=reason or _counted(counts, refused),
            kernel_counts=counts,
            refused=refused,
        )

    def _try(self, forms: GraphForms, name: str, folder: Path, progress: Progress) -> Trial:
        content = forms.contents[name]  # type: ignore[index]  # a wish that is a form's name
        trial = try_form(
            self._bundle, self._kind, self._request, name, content, folder, self._axes, progress
        )
        return trial if content is None else trial.requiring_fusion(forms.narrowed)


def _counted(counts: Mapping[str, int | None], refused: Mapping[str, str]) -> str:
    said = ", ".join(
        f"{form} {n}" if n is not None else f"{form} none ({refused.get(form, '')})"
        for form, n in counts.items()
    )
    return f"the fewest kernels of all forms that were built: {said}"


def _part_of(progress: Progress, number: int, count: int) -> Progress:
    return lambda phase, fraction: progress(phase, (number + min(fraction, 0.99)) / count)


def _graph_is_whole(plan: EnginePlan, *, rehash: bool) -> bool:
    """Whether the lowered graph that the plan was built from still lies beside it."""
    if plan.lowering is None or not plan.lowering.graph:
        return True
    assert plan.path is not None
    file = plan.path.with_name(plan.lowering.graph)
    return file.is_file() and (remembered_sha256(file, again=rehash) == plan.lowering.graph_sha256)


def _sizes(axes: dict[str, Axis]) -> dict[str, tuple[int, int, int]]:
    return {name: (axis.min, axis.opt, axis.max) for name, axis in axes.items()}


def _put_in_place(plan: EnginePlan, folder: Path, path: Path) -> None:
    """Renames the files into place, the record last: without it a plan is not one."""
    save_record(plan, folder / record_path(path).name, home=path.parent)
    try:
        record_path(path).unlink(missing_ok=True)
        lowered = folder / lowered_path(path).name
        lowered_path(path).unlink(missing_ok=True)
        if lowered.exists():
            lowered.replace(lowered_path(path))
        (folder / PLAN).replace(path)
        (folder / LOG).replace(log_path(path))
        (folder / record_path(path).name).replace(record_path(path))
    except OSError as err:
        raise BuildError(f"the plan cannot be put at {path} ({err}): name another folder") from err
