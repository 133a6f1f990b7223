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


class WideLogits:
    """Logits in float64, of whole sequences in one pass that no axis limits.

    Args:
        bundle: What was exported.
        layout: The parts of its graph.
        module: What it was exported from.
    """

    def __init__(self, bundle: Bundle, layout: DecodingLayout, module: torch.nn.Module) -> None:
        self._bundle, self._layout = bundle, layout
        self._double = module_in_dtype(module_in_dtype(module, bundle.dtype), "float64")

    def of(self, ids: np.ndarray) -> np.ndarray:
        """(S,) -> (S,V)."""
        layout, specs = self._layout, self._bundle.manifest.inputs
        capacity = None
        if layout.kind == "static":
            dim = layout.caches[0].input.shape[layout.caches[0].axis]
            capacity = dim if isinstance(dim, int) else layout.axes[dim].max
        tokens = ids[None].astype(np.int64)
        step = Step(Held(1, capacity), np.ones(tokens.shape, bool))
        feeds = feeds_of(layout, tokens, step) | empty_past(layout, 1, capacity)
        tensors = {spec.name: to_torch(feeds[spec.name]) for spec in specs}
        wide = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        with torch.inference_mode():
            results = call_module(self._double, wide)
        names = [spec.name for spec in self._bundle.manifest.outputs]
        logits: np.ndarray = to_numpy(results[names.index(layout.result.name)])[0]
        return logits
