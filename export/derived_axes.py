"""Derived axes in a captured graph: that they are the declared sums, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from attnport.axes import Axis, sum_terms
from attnport.errors import NarrowedRangeError
from attnport.export.dynamic_shapes import Example


def require_declared_sums(
    placeholders: Mapping[str, tuple[Any, ...]], example: Example, axes: Mapping[str, Axis]
) -> None:
    """Refuses a graph in which a derived axis is something else than was declared.

    Args:
        placeholders: The sizes that torch found for each input: numbers, and symbolic ones.
        example: The inputs, and which of their dimensions is which axis.
        axes: The axes.

    Raises:
        NarrowedRangeError: With what the graph was found to be right for.
    """
    found: dict[str, Any] = {}
    for name, dims in example.dims.items():
        for at, symbol in dims.items():
            found.setdefault(symbol, _expression(placeholders[name][at]))
    for name, dims in example.dims.items():
        for at, symbol in dims.items():
            axis, size = axes[symbol], _expression(placeholders[name][at])
            if not axis.terms or not all(t in found for t in axis.terms if isinstance(t, str)):
                continue
            wanted = sum(found[term] if isinstance(term, str) else term for term in axis.terms)
            if size - wanted != 0 and not _is_free(size, found, symbol):
                raise NarrowedRangeError(
                    f"{symbol} of {name} is declared as {axis.rule}, and the captured graph is "
                    f"right only where it is {_named(size, found)}: declare it as the module has "
                    "it, or mend the module"
                )


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _is_free(size: Any, found: Mapping[str, Any], symbol: str) -> bool:
    """Whether nothing in the graph ties the dimension to another, so that any size is right."""
    others = [s for other, s in found.items() if other != symbol and not isinstance(s, int)]
    shared = {s for other in others for s in other.free_symbols}
    return not isinstance(size, int) and size.is_Symbol and size not in shared


def _named(size: Any, found: Mapping[str, Any]) -> str:
    """The size in the words of the axes."""
    text = str(size)
    for name, expression in found.items():
        if not isinstance(expression, int) and expression.is_Symbol:
            text = text.replace(str(expression), name)
    return text


def name_derived_axes(graph: ir.Graph, example: Example, axes: Mapping[str, Axis]) -> None:
    """Gives dimensions that are "past + seq", say, the name of the axis that is declared so."""
    by_terms = {_unordered(axis.terms): name for name, axis in axes.items() if axis.terms}
    if not by_terms:
        return
    for value in graph.inputs:
        for at, symbol in example.dims.get(str(value.name), {}).items():
            if axes[symbol].terms and value.shape is not None:
                value.shape[at] = symbol
    nodes = [value for node in graph.all_nodes() for value in node.outputs]
    for value in [*graph.inputs, *nodes]:
        for at, dim in enumerate(value.shape or ()):
            text = dim.value if isinstance(dim, ir.SymbolicDim) else None
            if text is not None and not text.isidentifier() and value.shape is not None:
                value.shape[at] = by_terms.get(_unordered(sum_terms(text)), text)


def _unordered(terms: tuple[str | int, ...]) -> tuple[str, ...]:
    return tuple(sorted(map(str, terms)))
