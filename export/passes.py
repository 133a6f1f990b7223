"""The passes, in their order, on any ONNX graph.

    tidy               functions inlined, constants made initializers, dead nodes removed
    fold_weights       movements of constants are done once, here
    einsum_to_matmul   products written as Einsum become MatMul
    write_in_bodies    captured attention in branches and loops written out
    expand_operator    the operator's cache, key lengths and window written out
    plain_scores       masks are added to scores, scales come before them
    heads_from_batch   scores that change between three axes and four have four throughout
    merge_qkv          projections that share an input become one matrix
    write_pattern      every attention in the canonical form (or write_attention, the operator)

Each pass finds the attentions anew in the graph that it is given, so none depends on what another
one remembered. A second run changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common

from attnport.axes import Axis
from attnport.errors import InternalError
from attnport.export import capture_operator
from attnport.export.asking_sizes import sizes_to_ask_at
from attnport.export.concrete import ConcreteGraph
from attnport.export.context_rows import guards_of
from attnport.export.einsum import einsum_to_matmul
from attnport.export.expand_operator import expand_operator
from attnport.export.find_attention import find_attentions
from attnport.export.fold_weights import fold_weights
from attnport.export.guard_returned import guard_returned
from attnport.export.heads_from_batch import has_reshaped_scores, heads_from_batch
from attnport.export.mask_data import mask_feeds
from attnport.export.merge_qkv import merge_qkv
from attnport.export.plain_scores import may_have_other_scores, plain_scores
from attnport.export.projections import find_groups
from attnport.export.records import Form, Inspection, PassRecord
from attnport.export.sites import AttentionSite
from attnport.export.unrecognised import unrecognised
from attnport.export.write_attention import write_attention
from attnport.export.write_in_bodies import write_in_bodies

_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class View:
    """A graph with its attentions, and the graph at concrete sizes."""

    sites: list[AttentionSite]
    graphs: list[ConcreteGraph]


def run_passes(
    model: ir.Model, axes: Mapping[str, Axis] | None = None, form: Form = "pattern"
) -> tuple[PassRecord, ...]:
    """Runs every pass on the model, in place.

    Args:
        model: The model; its weights may be lazily loaded.
        axes: The ranges of symbolic dimensions, where they are known: sizes to ask at are taken
            from within.
        form: What attentions are written as.
    """
    axes = axes or {}
    names = [value.name for value in model.graph.outputs]
    with _quiet():
        _tidy(model)
        records = [fold_weights(model.graph), *write_plainly(model, axes, form)]
        records.append(merge_qkv(model.graph, *_unpack(look_at(model.graph, axes))))
        model.graph.sort()
        _tidy(model)
        view = look_at(model.graph, axes)
        fed = _fed_graphs(model.graph, view)
        records.append(guard_returned(model.graph, view.sites))
        records.append(write_attention(model.graph, view.sites, view.graphs, fed, form))
        model.graph.sort()
        _tidy(model)
    _restore_output_names(model.graph, names)
    _require_no_captured_operator(model.graph)
    return tuple(records)


def write_plainly(model: ir.Model, axes: Mapping[str, Axis], form: Form) -> list[PassRecord]:
    """What makes attentions look like those that are found, in place; nothing is merged yet."""
    return [
        einsum_to_matmul(model.graph),
        write_in_bodies(model.graph),
        _expand(model, axes, form),
        _score_plainly(model, axes),
        _lift_heads(model, axes),
    ]


def _where_wanted(
    model: ir.Model,
    axes: Mapping[str, Axis],
    name: str,
    wanted: bool,
    rewrite: Callable[[ir.Graph, list[ConcreteGraph]], PassRecord],
) -> PassRecord:
    """Runs a pass that asks the graph at sizes, unless there is nothing in it for the pass."""
    if not wanted:
        return PassRecord(name=name, changed=0)
    record = rewrite(model.graph, graphs_to_ask(model.graph, axes))
    if record.changed:
        _tidy(model)
    return record


def _expand(model: ir.Model, axes: Mapping[str, Axis], form: Form) -> PassRecord:
    """Writes out what the Attention operator keeps to itself, in place."""
    wanted = any(node.op_type == "Attention" and not node.domain for node in model.graph)
    return _where_wanted(
        model, axes, "expand_operator", wanted,
        lambda graph, graphs: expand_operator(graph, graphs, form),
    )  # fmt: skip


def _score_plainly(model: ir.Model, axes: Mapping[str, Axis]) -> PassRecord:
    """Adds to scores what is subtracted, and scales them before anything is added, in place."""
    wanted = may_have_other_scores(model.graph)
    return _where_wanted(model, axes, "plain_scores", wanted, plain_scores)


def _lift_heads(model: ir.Model, axes: Mapping[str, Axis]) -> PassRecord:
    """Gives scores an axis of heads where only a part of their way has one, in place."""
    wanted = has_reshaped_scores(model.graph)
    return _where_wanted(model, axes, "heads_from_batch", wanted, heads_from_batch)


def inspect_graph(graph: ir.Graph, axes: Mapping[str, Axis] | None = None) -> Inspection:
    """Every attention and projection group of a graph, which is not changed."""
    view = look_at(graph, axes or {})
    return Inspection(
        attentions=(
            *(site.describe() for site in view.sites),
            *unrecognised(graph, view.sites),
        ),
        projection_groups=tuple(
            group.describe() for group in find_groups(view.sites, view.graphs)
        ),
    )


def look_at(graph: ir.Graph, axes: Mapping[str, Axis]) -> View:
    """Finds the attentions of a graph, asking it at two sets of sizes."""
    graphs = graphs_to_ask(graph, axes)
    return View(find_attentions(graph, graphs), graphs)


def graphs_to_ask(graph: ir.Graph, axes: Mapping[str, Axis]) -> list[ConcreteGraph]:
    """The graph at two sets of sizes."""
    limits = {name: axis.max for name, axis in axes.items()}
    return [ConcreteGraph(graph, sizes, limits=limits) for sizes in sizes_to_ask_at(graph, axes)]


def _fed_graphs(graph: ir.Graph, view: View) -> list[ConcreteGraph]:
    """The graph at concrete sizes with random masks, several times."""
    conditions = list(_guard_conditions(view))
    if not conditions:
        return []
    plain = view.graphs[0]
    return [
        ConcreteGraph(graph, plain.sizes, mask_feeds(view.sites, conditions, plain, seed))
        for seed in _SEEDS
    ]


def _guard_conditions(view: View) -> Iterator[ir.Value]:
    for site in view.sites:
        for guard in guards_of(site, view.graphs):
            if guard.inputs[0] is not None:
                yield guard.inputs[0]


def _unpack(view: View) -> tuple[list[AttentionSite], list[ConcreteGraph]]:
    return view.sites, view.graphs


def _tidy(model: ir.Model) -> None:
    steps: Sequence[Callable[[ir.Model], object]] = (
        common.InlinePass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.ShapeInferencePass(),
    )
    model.graph.meta.pop("attnport.names", None)
    for step in steps:
        step(model)
    _drop_unused_constants(model.graph)


def _drop_unused_constants(graph: ir.Graph) -> None:
    """A weight that was merged or folded into another must not travel along."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def _restore_output_names(graph: ir.Graph, names: Sequence[str | None]) -> None:
    """Gives outputs the names that users ask for, whichever node computes them now."""
    changed = [(v, name) for v, name in zip(graph.outputs, names, strict=True) if v.name != name]
    wanted = {name for _, name in changed}
    for node in graph:
        for value in node.outputs:
            if value.name in wanted:
                value.name = f"{node.name}_output"
    for value, name in changed:
        value.name = name


def _require_no_captured_operator(graph: ir.Graph) -> None:
    for node in graph.all_nodes():
        if node.domain == capture_operator.DOMAIN:
            raise InternalError(
                f"{node.name} (F.scaled_dot_product_attention) was captured but not written: "
                "please report the module; writing the attention out by hand avoids it"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """onnx_ir's passes report every step at INFO; what they did is in our own records."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
