"""Symbolic axes: the one place that says which sizes a model is for.

The exporter's dynamic shapes, the TensorRT profile, the cases and the served limits are all read
from the same `Axis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnport.errors import UsageError


@dataclass(frozen=True, order=True)
class Axis:
    """A named dimension and the sizes it may take.

    Attributes:
        name: The symbol, as it stands in the ONNX file ("batch", "seq").
        min: The smallest size, in elements.
        opt: The size to optimise for.
        max: The largest size.

    Raises:
        UsageError: Unless 0 <= min <= opt <= max and the name is an identifier.

    >>> Axis("seq", 1, 128, 512).sizes()
    (1, 128, 512)
    """

    name: str
    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(
                f"axis name {self.name!r} is not an identifier: use a word such as 'batch' or 'seq'"
            )
        if not 0 <= self.min <= self.opt <= self.max:
            raise UsageError(
                f"axis {self.name!r} has min={self.min}, opt={self.opt}, max={self.max}: "
                "give them so that 0 <= min <= opt <= max"
            )

    def sizes(self) -> tuple[int, ...]:
        """The distinct sizes min, opt, max, in ascending order."""
        return tuple(sorted({self.min, self.opt, self.max}))

    def __contains__(self, size: int) -> bool:
        return self.min <= size <= self.max

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Reads `name=min:opt:max`, the form of the command line.

        >>> Axis.parse("batch=1:4:8")
        Axis(name='batch', min=1, opt=4, max=8)
        """
        name, _, sizes = text.partition("=")
        try:
            low, opt, high = (int(part) for part in sizes.split(":"))
        except ValueError:
            raise UsageError(
                f"axis {text!r} is not of the form name=min:opt:max, such as seq=1:128:512"
            ) from None
        return cls(name.strip(), low, opt, high)


def axes_by_name(
    axes: Mapping[str, Axis | tuple[int, int, int]] | Iterable[Axis],
) -> dict[str, Axis]:
    """Gathers axes given as `{"seq": (1, 128, 512)}`, as `{"seq": Axis(…)}` or as a list of Axis.

    Raises:
        UsageError: If a name is given twice or a key and its Axis disagree.
    """
    found: dict[str, Axis] = {}
    items: Iterable[tuple[str, Axis | tuple[int, int, int]]]
    items = axes.items() if isinstance(axes, Mapping) else ((axis.name, axis) for axis in axes)
    for name, value in items:
        axis = value if isinstance(value, Axis) else Axis(name, *value)
        if axis.name != name:
            raise UsageError(f"axis {axis.name!r} is given under the name {name!r}: use one name")
        if name in found:
            raise UsageError(f"axis {name!r} is given twice: give each axis once")
        found[name] = axis
    return found
