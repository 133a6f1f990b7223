"""One form of a graph, built: the plan, what it says of itself, and how many kernels it has."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnport.axes import Axis
from attnport.engines.fusion import fusion_report
from attnport.engines.graph_facts import read_graph_facts
from attnport.engines.layer_table import parse_inspections, parse_layer_tables
from attnport.engines.plan import FusionReport
from attnport.engines.trt_failures import death, refusal
from attnport.engines.trt_process import run_builder
from attnport.engines.trt_request import PLAN, BuildRequest, BuildResult
from attnport.errors import BuildError
from attnport.export.bundle import Bundle

Progress = Callable[[str, float], None]
_GRAPH = "graph.onnx"


@dataclass(frozen=True)
class Trial:
    """What came of building one form.

    Attributes:
        form: Its name.
        folder: Where the builder left its files.
        graph: The graph that was built; None for `model.onnx`.
        outcome: The builder's result with what the plan says, or why there is none.
    """

    form: str
    folder: Path
    graph: Path | None
    outcome: tuple[BuildResult, FusionReport] | BuildError

    @property
    def kernels(self) -> int | None:
        """Kernel launches in all profiles; None without a plan."""
        return None if isinstance(self.outcome, BuildError) else sum(self.fusion.kernel_counts)

    @property
    def refused(self) -> str:
        """Why there is no plan of this form, or none to be used; "" where there is."""
        return str(self.outcome) if isinstance(self.outcome, BuildError) else ""

    def requiring_fusion(self, narrowed: Collection[str]) -> Trial:
        """The trial, refused if a product that was narrowed did not end in an attention kernel."""
        if isinstance(self.outcome, BuildError) or not narrowed:
            return self
        inside = {node for one in self.fusion.attentions if one.fused for node in one.nodes}
        missed = sorted(set(narrowed) - inside)
        if not missed:
            return self
        said = (
            f"{missed[0]} would multiply queries and keys in half precision outside of an attention "
            "kernel, where scores beyond its range are lost"
        )
        return dataclasses.replace(self, outcome=BuildError(said))

    @property
    def result(self) -> BuildResult:
        return self._built()[0]

    @property
    def fusion(self) -> FusionReport:
        return self._built()[1]

    def _built(self) -> tuple[BuildResult, FusionReport]:
        if isinstance(self.outcome, BuildError):
            raise self.outcome
        return self.outcome


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The one with the fewest kernels; of equals the first.

    Raises:
        BuildError: If none gave a plan: the first one's.
    """
    built = [trial for trial in trials if trial.kernels is not None]
    if not built:
        assert isinstance(trials[0].outcome, BuildError)
        raise trials[0].outcome
    return min(built, key=lambda trial: trial.kernels or 0)


def try_form(
    bundle: Bundle,
    kind: str,
    request: BuildRequest,
    form: str,
    content: bytes | None,
    parent: Path,
    axes: Sequence[Mapping[str, Axis]],
    progress: Progress,
) -> Trial:
    """Builds one form in a folder of its own.

    Args:
        bundle: What is built.
        kind: "tensorrt" or "tensorrt-rtx".
        request: How; `graph_path` is set here.
        form: The form's name.
        content: Its graph; None for `model.onnx`.
        parent: Where its folder is made.
        axes: The ranges of the axes in each profile.
        progress: Called with what TensorRT does and the fraction that is done.
    """
    folder = parent / form
    folder.mkdir()
    graph = None
    if content is not None:
        graph = folder / _GRAPH
        graph.write_bytes(content)
    asked = request.model_copy(update={"graph_path": graph and graph.resolve()})
    code, result = run_builder(asked, folder, progress)
    outcome: tuple[BuildResult, FusionReport] | BuildError
    if result is None:
        outcome = death(bundle.name, kind, code, folder)
    elif result.failure is not None:
        outcome = refusal(bundle.name, kind, result.failure, request.options, folder)
    else:
        outcome = result, _fusion(bundle, result, folder / PLAN, graph, axes)
    return Trial(form, folder, graph, outcome)


def _fusion(
    bundle: Bundle,
    result: BuildResult,
    plan: Path,
    graph: Path | None,
    axes: Sequence[Mapping[str, Axis]],
) -> FusionReport:
    if result.layer_tables or not result.inspections:
        layers = parse_layer_tables(result.layer_tables)
    else:
        layers = parse_inspections(result.inspections)
    with plan.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return fusion_report(
            bundle.manifest.attentions,
            bundle.manifest.projection_groups,
            bundle.dtype,
            layers,
            data,
            read_graph_facts(graph or bundle.model_path),
            axes,
        )
