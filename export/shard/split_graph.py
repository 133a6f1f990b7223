"""A bundle's graph, and what of it is left on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common

from attnport.errors import GraphError
from attnport.export.bundle import Bundle
from attnport.export.concrete import ConcreteGraph
from attnport.export.onnx_file import load_onnx
from attnport.export.passes import look_at, run_passes
from attnport.export.shard.check_rank import check_rank
from attnport.export.shard.demands import demands_of_rank
from attnport.export.shard.held import CannotSplitError, Held
from attnport.export.shard.pairs import require_divisible
from attnport.export.shard.rank_graph import RankGraph
from attnport.export.shard.records import Reduction, WeightBytes
from attnport.export.sites import AttentionSite
from attnport.export.unrecognised import unrecognised


@dataclass(frozen=True)
class WholeGraph:
    """The graph that is split, with its attentions, at concrete sizes."""

    model: ir.Model
    sites: Sequence[AttentionSite]
    graphs: Sequence[ConcreteGraph]


@dataclass(frozen=True)
class RankModel:
    """What one rank runs.

    Attributes:
        model: Its graph.
        parts: What it holds of inputs, outputs and everything between, by name.
        reductions: The sums over the ranks, in order.
        weights: The bytes that it holds.
        whole_weights: Those of the whole graph, by the same division.
    """

    model: ir.Model
    parts: Mapping[str, Held]
    reductions: tuple[Reduction, ...]
    weights: WeightBytes
    whole_weights: WeightBytes


def load_whole(bundle: Bundle, ranks: int) -> WholeGraph:
    """Reads a bundle's graph and finds its attentions.

    Raises:
        GraphError: If there is none, or one is not recognised.
        UsageError: If the heads of one do not divide.
    """
    model = _load(bundle)
    view = look_at(model.graph, bundle.axes)
    unknown = unrecognised(model.graph, view.sites)
    if unknown:
        raise GraphError(
            f"{unknown[0].name} is not recognised, so it cannot be split: {unknown[0].reason}"
        )
    require_divisible(view.sites, view.graphs[0], ranks)
    return WholeGraph(model, view.sites, view.graphs)


def rank_model(bundle: Bundle, whole: WholeGraph, rank: int, ranks: int) -> RankModel:
    """Makes the graph of one rank; the whole one stays as it is.

    Raises:
        GraphError: If an attention, or a node beside it, cannot be split; names it.
    """
    demands = demands_of_rank(whole.model.graph, whole.sites, whole.graphs[0], rank, ranks)
    model = _load(bundle)
    graph = model.graph
    names = [value.name for value in graph.outputs]
    writer = RankGraph(whole.model.graph, graph, demands, whole.graphs[0], rank)
    try:
        totals = writer.write()
    except CannotSplitError as err:
        raise GraphError(f"the graph cannot be split: {err}") from err
    graph.sort()
    _name_outputs(graph, names)
    _tidy(model)
    parts = {str(value.name): part for value, part in demands.parts.items()}
    require_parts(graph, whole, parts)
    sums = zip(totals, demands.rows, strict=True)
    return RankModel(
        model=model,
        parts=parts,
        reductions=tuple(
            Reduction(name=name, of=row.name, kind=row.kind, width=row.width) for name, row in sums
        ),
        weights=_bytes(graph, {str(v.name) for v in writer.made.values()}),
        whole_weights=_bytes(whole.model.graph, {name for name, _ in writer.made}),
    )


def _load(bundle: Bundle) -> ir.Model:
    """The bundle's graph with attention as the pattern, whose every step can be split."""
    model = load_onnx(bundle.model_path)
    if bundle.manifest.form == "attention":
        run_passes(model, bundle.axes, "pattern")
    common.ShapeInferencePass()(model)  # a sum has the shape that what it sums is said to have
    return model


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    every: Iterable[ir.Value] = (
        *graph.inputs,
        *graph.initializers.values(),
        *(value for node in graph for value in node.outputs),
    )
    return {str(value.name): value for value in every if value.name}


def _name_outputs(graph: ir.Graph, names: Sequence[str | None]) -> None:
    """Outputs keep the names that users ask for, whichever node gives them now."""
    wanted = set(names)
    now = list(zip(graph.outputs, names, strict=True))
    for node in graph:
        for value in node.outputs:
            if value.name in wanted and not any(value is output for output, _ in now):
                value.name = f"{value.name}.partial"
    for value, name in now:
        value.name = name


def _tidy(model: ir.Model) -> None:
    common.RemoveUnusedNodesPass()(model)
    common.ShapeInferencePass()(model)
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[name]


def require_parts(graph: ir.Graph, whole: WholeGraph, parts: Mapping[str, Held]) -> None:
    """Compares a rank's graph with the whole one, at both sizes.

    Raises:
        GraphError: If it is not the part that it should be; names the node.
    """
    for concrete in whole.graphs:
        local = ConcreteGraph(graph, concrete.sizes, limits=concrete.limits)
        check_rank(graph, local, concrete, parts, _values(whole.model.graph))


def _bytes(graph: ir.Graph, split: set[str]) -> WeightBytes:
    sizes = {
        name: value.const_value.nbytes
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }
    part = sum(size for name, size in sizes.items() if name in split)
    return WeightBytes(split=part, repeated=sum(sizes.values()) - part)
