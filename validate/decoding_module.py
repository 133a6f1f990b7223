"""The module as what decoding is compared with: cases made here, and logits in float64."""

from __future__ import annotations

import numpy as np
import torch

from attnport.engines.decoding.caches import empty_past
from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.decoding.visibility import Held, Step
from attnport.engines.decoding.words import feeds_of
from attnport.export.bundle import Bundle, Case
from attnport.export.cases import CasePlan
from attnport.export.module_forms import call_module, module_in_dtype, to_numpy, to_torch
from attnport.export.records import CaseRecord
from attnport.export.reference import Reference


def computed_case(bundle: Bundle, module: torch.nn.Module, plan: CasePlan) -> Case:
    """A case that the bundle does not carry.

    Args:
        bundle: The bundle.
        module: What it was exported from.
        plan: The case.

    Raises:
        ModuleError: If the module fails.
    """
    specs = bundle.manifest.inputs
    inputs = plan.inputs(specs)
    moved = [spec.name for spec in specs if spec.role in ("activation", "bias", "cache")]
    low = module_in_dtype(module, bundle.dtype)
    computed = Reference(low, bundle.dtype, bundle.manifest.outputs).compute(
        inputs, moved, plan.seed
    )
    record = CaseRecord(
        name=plan.name,
        file="",
        seed=plan.seed,
        sizes=plan.sizes,
        mask=plan.mask,
        references=computed.references,
    )
    return Case(record, inputs, computed.arrays)


def wide_logits(
    bundle: Bundle, layout: DecodingLayout, module: torch.nn.Module, ids: np.ndarray
) -> np.ndarray:
    """Logits of one sequence in float64, in one pass that no axis limits: (S,) -> (S,V)."""
    capacity = None
    if layout.kind == "static":
        cache = layout.caches[0]
        dim = cache.input.shape[cache.axis]
        capacity = dim if isinstance(dim, int) else layout.axes[dim].max
    tokens = ids[None].astype(np.int64)
    step = Step(Held(1, capacity), np.ones(tokens.shape, bool))
    feeds = feeds_of(layout, tokens, step) | empty_past(layout, 1, capacity)
    double = module_in_dtype(module_in_dtype(module, bundle.dtype), "float64")
    tensors = {name: to_torch(feeds[name]) for name in (s.name for s in bundle.manifest.inputs)}
    wide = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    with torch.inference_mode():
        results = call_module(double, wide)
    place = [spec.name for spec in bundle.manifest.outputs].index(layout.result.name)
    logits: np.ndarray = to_numpy(results[place])[0]
    return logits
