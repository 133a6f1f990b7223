"""Where a result goes wrong: the first node of a graph whose output leaves its bound.

Two questions, one after the other. Is the graph the module? Both are computed in float64, where
rounding is no excuse, and every tensor of the graph is looked for among the module's. Is the engine
the graph? Its tensors are compared with those of the float64 graph, each within a bound of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx

from attnport.engines.build import build_engine
from attnport.engines.kinds import engine_kind
from attnport.engines.open import open_engine
from attnport.errors import UsageError
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle, Case
from attnport.validate.bound import ULPS, C, ulp
from attnport.validate.cut_bundle import cut
from attnport.validate.difference import difference
from attnport.validate.fingerprint import Fingerprint, fingerprint
from attnport.validate.graph_taps import (
    Tap,
    double_graph,
    in_groups,
    origin_of,
    run_double,
    shaken,
    taps_of,
)

if TYPE_CHECKING:
    import torch

    from attnport.validate.module_trace import Made

Tell = Callable[[str, float], object]


@dataclass(frozen=True)
class Bisection:
    """What was found.

    Attributes:
        case: The case that was looked at.
        side: "graph" where the graph is not the module, "engine" where the engine is not the
            graph, "" where nothing leaves its bound.
        node: The first node that does.
        operator: Its operator.
        tensor: What it makes.
        path: The submodule that it comes from, as the exporter or the module tells.
        line: The line of the module's code.
        after: The last tensor before it that was right.
        message: All of it in a sentence.
    """

    case: str
    side: str
    node: str = ""
    operator: str = ""
    tensor: str = ""
    path: str = ""
    line: str = ""
    after: str = ""
    message: str = ""


def bisect(
    bundle: Bundle,
    kind: str,
    module: torch.nn.Module,
    *,
    case: str | None = None,
    memory_bytes: int = 1 << 30,
    tell: Tell = lambda what, fraction: None,
) -> Bisection:
    """Finds the first node whose output leaves its bound.

    Args:
        bundle: The bundle; its graph is what is looked into.
        kind: The engine.
        module: The module that the bundle was exported from.
        case: The case to look at; the smallest by default.
        memory_bytes: What the tensors that are held at once may take.
        tell: Called with what is being done and the fraction that is done.

    Raises:
        UsageError: If the engine runs no graph, or there is no such case.
        EngineUnavailableError: If this machine cannot run the engine.
    """
    if engine_kind(kind).needs_module:
        graphs = ", ".join(k for k in ("ort-cpu", "tensorrt-rtx", "tensorrt"))
        raise UsageError(
            f"{kind} runs the module, and has no graph to bisect: use one of {graphs}"
        )
    given = _case(bundle, case)
    model = onnx.load(bundle.model_path)
    taps = taps_of(model, given.inputs)
    tell("the graph against the module", 0.0)
    found = _against_module(bundle, module, model, taps, given, memory_bytes)
    if found is None:
        tell("the engine against the graph", 0.5)
        found = _against_graph(bundle, kind, model, taps, given, memory_bytes)
    return found or Bisection(
        given.record.name, "", message=f"{given.record.name}: nothing leaves its bound"
    )


def _case(bundle: Bundle, name: str | None) -> Case:
    if name is not None:
        return bundle.load_case(name)
    cases = bundle.manifest.cases
    if not cases:
        raise UsageError(
            f"bundle {bundle.path} holds no case to bisect with: export it with cases"
        )
    # The smallest of more than one element along every axis: at size 1 much is right by chance.
    large = [record for record in cases if all(size > 1 for size in record.sizes.values())]
    return bundle.load_case(min(large or cases, key=lambda r: sum(r.sizes.values())).name)


def _against_module(
    bundle: Bundle,
    module: torch.nn.Module,
    model: onnx.ModelProto,
    taps: Sequence[Tap],
    case: Case,
    memory_bytes: int,
) -> Bisection | None:
    from attnport.validate.module_trace import trace_module

    made = trace_module(module, case.inputs)
    # As far apart as float64 may be, and far nearer than the dtype: see Reference.properties.
    eps = float(ml_dtypes.finfo(numpy_dtype(bundle.dtype)).eps)
    limit = float(np.sqrt(np.finfo(np.float64).eps * eps))
    double = double_graph(model)
    matches: dict[str, Made | None] = {}
    for group in in_groups(taps, memory_bytes):
        for name, array in run_double(double, group, case.inputs).items():
            matches[name] = _match(fingerprint(array), made, limit)
    outputs = {output.name for output in model.graph.output}
    reference = {n: fingerprint(a) for n, a in case.references.items() if n in outputs}
    _trust_outputs(matches, reference, double, taps, case, limit, made)
    suspects = _suspects(model, matches)
    first = next((tap for tap in taps if tap.name in suspects), None)
    if first is None:
        return None
    after = _last_right(model, first, matches)
    return _bisection(
        first, "graph", case, after, matches.get(after), "is no tensor of the module"
    )


def _match(found: Fingerprint, made: Sequence[Made], limit: float) -> Made | None:
    """The module's tensor with the same numbers; None where only one in another order is."""
    same = [one for one in made if one.found.same_numbers(found, limit)]
    here = [one for one in same if one.found.shape == found.shape]
    ordered = [one for one in here if one.found.same_order(found, limit)]
    if ordered:
        return ordered[0]
    return None if here else (same[0] if same else None)


def _trust_outputs(
    matches: dict[str, Made | None],
    reference: Mapping[str, Fingerprint],
    double: onnx.ModelProto,
    taps: Sequence[Tap],
    case: Case,
    limit: float,
    made: Sequence[Made],
) -> None:
    """Outputs are right where they are the reference: dead rows are by rule, not by the module."""
    chosen = [tap for tap in taps if tap.name in reference]
    for name, array in run_double(double, chosen, case.inputs).items():
        found, wanted = fingerprint(array), reference[name]
        right = found.same_numbers(wanted, limit) and found.same_order(wanted, limit)
        matches[name] = (matches[name] or made[0]) if right else None


def _suspects(model: onnx.ModelProto, matches: Mapping[str, Made | None]) -> set[str]:
    """Tensors that are none of the module's, and that nothing of the module's is made from.

    One that is not the module's and leads to one that is was only written otherwise: a merged
    product, a scale that was applied earlier.
    """
    leads_to_right: set[str] = set()
    suspects: set[str] = set()
    for node in reversed(model.graph.node):
        outputs = list(node.output)
        right = any(matches.get(name) or name in leads_to_right for name in outputs)
        if right:
            leads_to_right.update(node.input)
        suspects.update(
            name
            for name in outputs
            if name in matches and not matches[name] and name not in leads_to_right
        )
    return suspects


def _last_right(model: onnx.ModelProto, first: Tap, matches: Mapping[str, Made | None]) -> str:
    """The nearest tensor before a node that is the module's."""
    makers = {name: node for node in model.graph.node for name in node.output}
    level = list(first.node.input)
    seen: set[str] = set()
    while level:
        for name in level:
            if matches.get(name):
                return str(name)
        seen.update(level)
        level = [
            i for name in level if name in makers for i in makers[name].input if i not in seen
        ]
    return ""


def _against_graph(
    bundle: Bundle,
    kind: str,
    model: onnx.ModelProto,
    taps: Sequence[Tap],
    case: Case,
    memory_bytes: int,
) -> Bisection | None:
    double = double_graph(model)
    moved = shaken(double, float(ml_dtypes.finfo(numpy_dtype(bundle.dtype)).eps) / 2)
    before = ""
    for group, outputs in _engine_values(bundle, kind, model, taps, case, memory_bytes):
        truth = run_double(double, group, case.inputs)
        near = run_double(moved, group, case.inputs)
        for tap in group:
            said = _outside(outputs[tap.name], truth[tap.name], near[tap.name], bundle.dtype)
            if said:
                return _bisection(tap, "engine", case, before, None, said)
            before = tap.name
    return None


def _engine_values(
    bundle: Bundle,
    kind: str,
    model: onnx.ModelProto,
    taps: Sequence[Tap],
    case: Case,
    memory_bytes: int,
) -> Iterator[tuple[list[Tap], Mapping[str, np.ndarray]]]:
    """What the engine computes, a few tensors at a time.

    ONNX Runtime gives several at once, with the rest of the graph kept; a plan is built anew for
    each, the graph cut behind it.
    """
    cuts = engine_kind(kind).builds_plan
    groups = ([tap] for tap in taps) if cuts else in_groups(taps, memory_bytes)
    for number, group in enumerate(groups):
        with tempfile.TemporaryDirectory(prefix="attnport-cut-") as temporary:
            part = cut(bundle, model, group, Path(temporary) / str(number), keep_rest=not cuts)
            plan = build_engine(part, kind) if cuts else None
            names = {spec.name for spec in part.manifest.inputs}
            feeds = {name: array for name, array in case.inputs.items() if name in names}
            with open_engine(part, kind, plan=plan) as engine:
                yield group, engine.run(feeds)


def _outside(found: np.ndarray, truth: np.ndarray, moved: np.ndarray, dtype: str) -> str:
    """How a tensor leaves its bound; empty where it does not."""
    if found.shape != truth.shape:
        return f"has shape {found.shape}, and {truth.shape} in float64"
    if not found.size:
        return ""
    apart = difference(found, truth)
    if apart.not_finite:
        return f"is {apart.value:.3g} at {list(apart.at)}, and {apart.expected:.3g} in float64"
    finite = np.isfinite(truth)
    both = finite & np.isfinite(moved)
    numbers, shift = truth[finite], np.abs(moved[both] - truth[both])
    most = float(np.max(shift, initial=0.0))
    # A tensor in the middle has no PyTorch beside it: what rounding moves it by stands for that,
    # once more for each product it went through, which the constant covers.
    limit = C * most + ULPS * ulp(float(np.max(np.abs(numbers), initial=0.0)), dtype) * C
    if not apart.max <= limit:
        return f"is off by {apart.max:.3g} at {list(apart.at)}, and its bound is {limit:.3g}"
    return ""


def _bisection(
    tap: Tap, side: str, case: Case, after: str, near: Made | None, what: str
) -> Bisection:
    path, line = origin_of(tap.node)
    if not line and near is not None:
        path, line = near.path, near.line
    where = f"{path or 'the module itself'}" + (f", {line}" if line else "")
    name = tap.node.name or tap.name
    return Bisection(
        case=case.record.name,
        side=side,
        node=name,
        operator=tap.node.op_type,
        tensor=tap.name,
        path=path,
        line=line,
        after=after,
        message=f"{case.record.name}: {tap.name} of {tap.node.op_type} {name} {what}"
        + (f"; {after} before it is right" if after else "")
        + f" (from {where})",
    )
