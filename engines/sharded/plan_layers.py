"""What the plan of a rank says of its sums over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from attnport.engines.plan import PlanLayer

# The type of a collective's row in the builder's table (TensorRT for RTX 1.7.1).
COLLECTIVE_LAYER = "comm_allreduce"


def layers_of_sums(layers: Sequence[PlanLayer], sums: Sequence[str]) -> dict[str, str]:
    """For each sum the name of the plan's layer that is it; sums without one are left out."""
    found = {}
    for layer in layers:
        if layer.type == COLLECTIVE_LAYER:
            found.update({node: layer.name for node in layer.nodes if node in sums})
    return found
