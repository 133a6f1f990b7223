"""Is the engine the graph? Its tensors are compared with the float64 graph's, each within a bound."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

from attnport.engines.build import build_engine
from attnport.engines.kinds import engine_kind
from attnport.engines.open import open_engine
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle, Case
from attnport.validate.bisection import Bisection, bisection_of
from attnport.validate.bound import ULPS, C, ulp
from attnport.validate.cut_bundle import cut
from attnport.validate.difference import difference
from attnport.validate.graph_taps import Tap, double_graph, in_groups, run_double, shaken


def against_graph(
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
                return bisection_of(tap, "engine", case, before, None, said)
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
