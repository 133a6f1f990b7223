"""Where a result goes wrong: the first node of a graph whose output leaves its bound.

Two questions, one after the other: is the graph the module (`bisect_module`), and is the engine the
graph (`bisect_engine`)?
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx

from attnport.engines.kinds import KINDS, engine_kind
from attnport.errors import UsageError
from attnport.export.bundle import Bundle, Case
from attnport.validate.bisect_engine import against_graph
from attnport.validate.bisect_module import against_module
from attnport.validate.bisection import Bisection
from attnport.validate.graph_taps import taps_of

if TYPE_CHECKING:
    import torch

Tell = Callable[[str, float], object]


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
        graphs = ", ".join(name for name, one in KINDS.items() if not one.needs_module)
        raise UsageError(
            f"{kind} runs the module, and has no graph to bisect: use one of {graphs}"
        )
    given = _case(bundle, case)
    model = onnx.load(bundle.model_path)
    taps = taps_of(model, given.inputs)
    tell("the graph against the module", 0.0)
    found = against_module(bundle, module, model, taps, given, memory_bytes)
    if found is None:
        tell("the engine against the graph", 0.5)
        found = against_graph(bundle, kind, model, taps, given, memory_bytes)
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
