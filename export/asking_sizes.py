"""At which sizes a graph is asked what it does.

Each symbol of the inputs has a size of its own, a prime, so that a product of axes is not mistaken
for another axis. Dimensions without a name are given one for asking: each its own where the graph
allows it, else those of the same position in all inputs share one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from attnport.axes import Axis
from attnport.export.concrete import ConcreteGraph, dimension_name

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Name, ast.Load,
    ast.Constant,
)  # fmt: skip

Sizes = dict[str, int]
# A dimension of an input, by its name, and where it stands.
Place = tuple[str, int]


def sizes_to_ask_at(graph: ir.Graph, axes: Mapping[str, Axis]) -> list[Sizes]:
    """Two sizes for every dimension of the inputs, different from each other where ranges allow.

    Args:
        graph: The graph.
        axes: The ranges of symbols, where they are known.

    Returns:
        Two mappings, from the names that `dimension_name` gives.
    """
    named, unnamed = _dimensions(graph)
    if not unnamed:
        return _rounds([name for name, _ in named], axes)
    best: tuple[int, list[Sizes]] | None = None
    for share in (_apart, _by_position, _batch_and_others):
        rounds = _shared_rounds(named, unnamed, share, axes)
        missing = _unknown_shapes(ConcreteGraph(graph, rounds[0]))
        if best is None or missing < best[0]:
            best = (missing, rounds)
        if not missing:
            break
    assert best is not None
    return best[1]


def _dimensions(graph: ir.Graph) -> tuple[list[Place], list[Place]]:
    """The dimensions that are no number: those with a name, and those without."""
    named: list[Place] = []
    unnamed: list[Place] = []
    for value in graph.inputs:
        for position, dim in enumerate(value.shape or ()):
            if isinstance(dim, int):
                continue
            places = named if dim.value is not None else unnamed
            places.append((dimension_name(value, position), position))
    return named, unnamed


def _apart(name: str, position: int) -> str:
    return name


def _by_position(name: str, position: int) -> str:
    return f"[{position}]"


def _batch_and_others(name: str, position: int) -> str:
    return "[batch]" if position == 0 else "[others]"


def _shared_rounds(
    named: Iterable[Place],
    unnamed: Iterable[Place],
    share: Callable[[str, int], str],
    axes: Mapping[str, Axis],
) -> list[Sizes]:
    """Sizes where unnamed dimensions that share are equal, also to a named one that does."""
    known: dict[str, str] = {}
    for name, position in named:
        known.setdefault(share(name, position), name)
    stands_for = {name: known.get(share(name, at), share(name, at)) for name, at in unnamed}
    rounds = _rounds([*(name for name, _ in named), *stands_for.values()], axes)
    return [sizes | {name: sizes[other] for name, other in stands_for.items()} for sizes in rounds]


def _rounds(names: Iterable[str], axes: Mapping[str, Axis]) -> list[Sizes]:
    symbols = list(dict.fromkeys(names))
    rounds: list[Sizes] = [{}, {}]
    for index, symbol in enumerate(symbols):
        wanted = [_PRIMES[(index + offset) % len(_PRIMES)] for offset in (0, 1)]
        axis = axes.get(symbol)
        for sizes, size in zip(rounds, _within(axis, *wanted) if axis else wanted, strict=True):
            sizes[symbol] = size
    for sizes in rounds:
        sizes.update({name: _derived(axes.get(name), sizes) or sizes[name] for name in symbols})
        sizes.update({name: _computed(name, sizes) or sizes[name] for name in symbols})
    return rounds


def _within(axis: Axis, first: int, second: int) -> tuple[int, int]:
    """Two sizes of the axis, those wanted or others, different if it has two."""
    if first < axis.min:
        first, second = axis.min + first, axis.min + second
    first, second = min(axis.max, first), min(axis.max, second)
    return first, second if second != first else max(axis.min, first - 1)


def _derived(axis: Axis | None, sizes: Sizes) -> int | None:
    """The size of an axis that is declared as the sum of others."""
    known = axis is not None and all(isinstance(t, int) or t in sizes for t in axis.terms)
    return axis.size_among(sizes) if axis is not None and axis.terms and known else None


def _computed(name: str, sizes: Sizes) -> int | None:
    """The size of a dimension that is called "past + seq", say; None for a plain name."""
    try:
        tree = ast.parse(name, mode="eval")
    except SyntaxError:
        return None
    nodes = list(ast.walk(tree))
    if isinstance(tree.body, ast.Name) or not all(isinstance(n, _ARITHMETIC) for n in nodes):
        return None
    if any(isinstance(node, ast.Name) and node.id not in sizes for node in nodes):
        return None
    try:
        size = int(eval(compile(tree, "dimension", "eval"), {"__builtins__": {}}, dict(sizes)))
    except (ArithmeticError, TypeError, ValueError):
        return None
    return size if size > 0 else None


def _unknown_shapes(graph: ConcreteGraph) -> int:
    return sum(graph.shape(value) is None for value in graph.values())
