"""Is the graph the module? Every tensor of the graph is looked for among the module's, in float64.

In float64 rounding is no excuse; and a tensor may stand in any layout, so it is its numbers that are
compared, by their fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx

from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle, Case
from attnport.validate.bisection import Bisection, bisection_of
from attnport.validate.fingerprint import Fingerprint, fingerprint
from attnport.validate.graph_taps import Tap, double_graph, in_groups, run_double

if TYPE_CHECKING:
    import torch

    from attnport.validate.module_trace import Made


def against_module(
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
    return bisection_of(
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
