"""What the mask terms of an attention mean: causal, hiding nothing, or able to hide a whole row.

Masks that follow from shapes and constants alone (a tril buffer, a comparison of ranges) are read
off at concrete sizes, however they were written. What depends on inputs stays a term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attnport.export.concrete import ConcreteGraph
from attnport.export.mask_cover import without_covered
from attnport.export.mask_data import alive_under, scores_shape, visible_at
from attnport.export.mask_meaning import meaning_of_constant
from attnport.export.mask_terms import can_be_minus_infinity, conjuncts, plain_terms
from attnport.export.sites import AttentionSite, MaskTerm


def analyse_masks(site: AttentionSite, graphs: Sequence[ConcreteGraph]) -> None:
    """Replaces what is decided by shapes alone by `causal`, and finds whether a row can be dead."""
    dtype = graphs[0].dtype(site.query)
    plain = [one for term in site.terms for one in plain_terms(term, site, dtype, graphs)]
    terms = [part for term in plain for part in conjuncts(term)]
    terms = without_covered(terms, site, graphs)
    meanings = [meaning_of_constant(term, site, graphs) for term in terms]
    alone = all(meanings)
    by_number = any(
        term.kind == "bool" and math.isfinite(term.fill) and meaning != "nothing"
        for term, meaning in zip(terms, meanings, strict=True)
    )
    by_shape = any(
        not meaning and all(visible_at(term, graph) is not None for graph in graphs)
        for term, meaning in zip(terms, meanings, strict=True)
    )  # a window, say: then it is not causality that hides by shape alone
    kept: list[MaskTerm] = []
    for term, meaning in zip(terms, meanings, strict=True):
        extract = alone or (_hides_for_good(term, graphs) and not by_number and not by_shape)
        if meaning == "causal" and extract:
            site.causal = True
        elif meaning != "nothing":
            kept.append(term)
    site.terms = kept
    dead = any(_may_hide_a_row(term, graphs) for term in kept) or any(
        _hide_a_row_together(site, graph) for graph in graphs
    )
    site.dead_rows = dead and not site.sink  # a sink is never hidden, and takes the whole row


def _hides_for_good(term: MaskTerm, graphs: Sequence[ConcreteGraph]) -> bool:
    """Whether what is hidden is so by -inf, and not by a finite number.

    Beside another mask that hides the rest of a row, keys at a finite number come back into view;
    so they do where the number is written over the -inf of another mask.
    """
    if term.kind == "bool":
        return term.fill == -math.inf
    data = [term.data(graph) for graph in graphs]
    return all(d is not None and np.isin(d, (0, -math.inf)).all() for d in data)


def _may_hide_a_row(term: MaskTerm, graphs: Sequence[ConcreteGraph]) -> bool:
    """Whether some input can leave a query without a single visible key."""
    if term.kind == "bool" and math.isfinite(term.fill):
        return False
    known = [visible_at(term, graph) for graph in graphs]
    if all(visible is not None for visible in known):
        return any(not visible.any(-1).all() for visible in known if visible is not None)
    return term.kind == "bool" or can_be_minus_infinity(term.value)


def _hide_a_row_together(site: AttentionSite, graph: ConcreteGraph) -> bool:
    """Whether the masks whose data is known leave a query without a visible key."""
    shape = scores_shape(site, graph)
    known = [term for term in site.terms if term.data(graph) is not None]
    alive = alive_under(site.causal, known, shape, graph) if shape is not None else None
    return alive is not None and not alive.all()
