"""Whether True (or 1) in a mask input lets a key be seen or hides it: tried on the graph.

PyTorch has both: the mask of F.scaled_dot_product_attention says what is visible, the
key_padding_mask of torch.nn.MultiheadAttention what is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from attnport.export.concrete import ConcreteGraph
from attnport.export.sites import AttentionSite

# What is added to hide is lower than any number that a bias takes.
_HIDES_BELOW = -1000.0


def hides_where_true(
    graph: ir.Graph,
    plain: ConcreteGraph,
    sites: Sequence[AttentionSite],
    masks: Sequence[ir.Value],
) -> set[ir.Value]:
    """The mask inputs of which ones leave less visible than zeros.

    Args:
        graph: The graph.
        plain: It at concrete sizes.
        sites: Its attentions.
        masks: The inputs that are masks; each is tried with all others at zero, and at one.
    """
    found = set()
    for mask in masks:
        more, less = 0, 0
        for others in (0, 1):
            low, high = (
                _visible(
                    ConcreteGraph(graph, plain.sizes, _feeds(masks, mask, own, others, plain)),
                    sites,
                )
                for own in (0, 1)
            )
            more, less = more + max(high - low, 0), less + max(low - high, 0)
        if less > more:
            found.add(mask)
    return found


def _feeds(
    masks: Sequence[ir.Value], mask: ir.Value, own: int, others: int, plain: ConcreteGraph
) -> Mapping[str, np.ndarray]:
    feeds = {}
    for value in masks:
        shape = plain.shape(value)
        if shape is not None and value.dtype is not None:
            content = own if value is mask else others
            feeds[str(value.name)] = np.full(shape, content, value.dtype.numpy())
    return feeds


def _visible(graph: ConcreteGraph, sites: Sequence[AttentionSite]) -> int:
    """How many elements of the masks let a score be seen."""
    count = 0
    for site in sites:
        for term in site.terms:
            data = term.data(graph)
            if data is not None:
                seen = term.visible(data) if term.kind == "bool" else data > _HIDES_BELOW
                count += int(np.count_nonzero(seen))
    return count
