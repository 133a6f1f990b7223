"""How the initializers of a graph are made of a module's parameters, found by value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from attnport.errors import GraphError

Weights = Mapping[str, np.ndarray]
_Content = tuple[tuple[int, ...], bytes]


@dataclass(frozen=True)
class Part:
    """A parameter, as it is or transposed."""

    name: str
    transposed: bool

    def make(self, weights: Weights) -> np.ndarray:
        return weights[self.name].T if self.transposed else weights[self.name]


@dataclass(frozen=True)
class Recipe:
    """Parameters side by side along an axis."""

    parts: tuple[Part, ...]
    axis: int = 0

    def make(self, weights: Weights) -> np.ndarray:
        arrays = [part.make(weights) for part in self.parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, self.axis)


def find_recipes(
    initializers: Weights, before: Weights, changed: Collection[str], dtype: np.dtype[np.generic]
) -> dict[str, Recipe]:
    """Finds what has to be replaced.

    Args:
        initializers: Those of the graph.
        before: The parameters that the graph was made from, in its dtype.
        changed: The parameters that have other values now.
        dtype: The graph's dtype; initializers of another are not weights.

    Returns:
        For each initializer that holds a changed parameter what it is made of.

    Raises:
        GraphError: If an initializer holds what no parameter explains, two parameters that had
            equal values cannot be told apart, or a changed parameter is nowhere in the graph.
    """
    known = _Parts(before)
    found: dict[str, Recipe] = {}
    used: set[str] = set()
    for name, array in initializers.items():
        if array.dtype != dtype or array.size < 2:
            continue
        recipes = list(_recipes(name, array, known))
        if not recipes:
            raise GraphError(
                f"the graph's weight {name!r} {array.shape} is made of no parameter of the module "
                "as it was exported, so it cannot be replaced: export the module with its new "
                "weights"
            )
        used.update(part.name for recipe in recipes for part in recipe.parts)
        affected = [r for r in recipes if any(part.name in changed for part in r.parts)]
        if affected and len(recipes) > 1:
            raise _ambiguous(name, recipes)
        if affected:
            found[name] = affected[0]
    missing = sorted(set(changed) - used)
    if missing:
        raise GraphError(
            f"the parameter {missing[0]!r} stands nowhere in the graph as it is (it had the values "
            "of another one and was merged with it, or a pass computed with it): export the module with its new weights"
        )
    return found


class _Parts:
    """The parameters by content, and the widths that they have."""

    def __init__(self, weights: Weights) -> None:
        self.shapes = {name: array.shape for name, array in weights.items()}
        self.by_content: dict[_Content, list[Part]] = {}
        for name, array in weights.items():
            self._add(array, Part(name, transposed=False))
            if array.ndim == 2:
                self._add(array.T, Part(name, transposed=True))

    def _add(self, array: np.ndarray, part: Part) -> None:
        self.by_content.setdefault(_content(array), []).append(part)

    def like(self, array: np.ndarray) -> list[Part]:
        """The parameters of that content, each once: a symmetric one is not transposed."""
        parts = self.by_content.get(_content(array), [])
        return list({part.name: part for part in reversed(parts)}.values())

    def widths(self, array: np.ndarray, axis: int) -> list[int]:
        """How wide a part of the array could be along an axis, so that a parameter fits."""
        others = tuple(size for at, size in enumerate(array.shape) if at != axis)
        fitting = {
            shape[axis]
            for shape, _ in self.by_content
            if len(shape) == array.ndim
            and tuple(size for at, size in enumerate(shape) if at != axis) == others
        }
        return sorted(fitting, reverse=True)


def _content(array: np.ndarray) -> _Content:
    return array.shape, np.ascontiguousarray(array).tobytes()


def _recipes(name: str, array: np.ndarray, known: _Parts) -> Iterator[Recipe]:
    if known.shapes.get(name) == array.shape:
        # The exporter keeps the names of parameters that it does not change: no guess is needed.
        same = [part for part in known.like(array) if part.name == name]
        if same:
            yield Recipe((same[0],))
            return
    whole = known.like(array)
    yield from (Recipe((part,)) for part in whole)
    if whole:
        return
    for axis in reversed(range(array.ndim)):
        made = list(_side_by_side(array, axis, known))
        if made:
            yield from made
            return


def _side_by_side(array: np.ndarray, axis: int, known: _Parts) -> Iterator[Recipe]:
    """The ways to lay parameters side by side; at most one for each choice of the first."""
    if array.shape[axis] == 0:
        yield Recipe((), axis)
        return
    for width in known.widths(array, axis):
        if width == 0 or width > array.shape[axis]:
            continue
        first, rest = np.split(array, [width], axis)
        for part in known.like(first):
            for recipe in _side_by_side(rest, axis, known):
                yield Recipe((part, *recipe.parts), axis)


def _ambiguous(name: str, recipes: list[Recipe]) -> GraphError:
    ways = " or ".join(" + ".join(part.name for part in recipe.parts) for recipe in recipes[:2])
    return GraphError(
        f"the graph's weight {name!r} may be {ways}, which had the same values when the module was "
        "exported: export the module with its new weights"
    )
