"""ModelSpec: all that the other rooms need to know of a model before they see its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from attnport.axes import Axis

DynamicShapes = tuple[dict[int, str] | None, ...]
Made = TypeVar("Made")


@dataclass(frozen=True)
class ModelSpec:
    """A model by name: how to make it and its inputs, and the sizes that it is for.

    Attributes:
        name: What reports call it.
        source: What the same module can be made from later, by `module_from_source`:
            `registry:NAME{sizes}`, `package.module:factory{sizes}` or `path.py:factory{sizes}`.
        make: Makes the module, with the same weights each time, in evaluation mode.
        make_args: Makes example arguments of forward, in order, at a size given for each axis;
            the same values each time.
        dynamic_shapes: For each argument the axis that each symbolic dimension follows, as
            torch.export takes it; None for an argument of fixed shape.
        axes: The axes by name.
        attentions: How many attentions the module holds; None where only the graph can tell.
        roles: What an argument of forward is, by name, where it is known: a `Role` of
            `attnport.export.records`.
        summary: One line for people.
    """

    name: str
    source: str
    make: Callable[[], nn.Module]
    make_args: Callable[[Mapping[str, int]], tuple[Tensor, ...]]
    dynamic_shapes: DynamicShapes
    axes: dict[str, Axis]
    attentions: int | None = None
    roles: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    def opt_sizes(self) -> dict[str, int]:
        """The size to optimise for of each axis, as `make_args` takes it."""
        return {name: axis.opt for name, axis in self.axes.items()}


def seeded(make: Callable[[], Made], seed: int = 0) -> Made:
    """Calls `make` with torch's CPU generator seeded, and leaves that generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
