"""Symbolic axes: the one place that says which sizes a model is for.

The exporter's dynamic shapes, the TensorRT profile, the cases and the served limits are all read
from the same `Axis`. A derived axis is as long as others together (`total = past + seq`): it is
declared as an `AxisSum`, and its range always follows from theirs.
"""

from __future__ import annotations

import re
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
        terms: Of a derived axis, the axes and numbers that its size is the sum of; else empty.

    Raises:
        UsageError: Unless 0 <= min <= opt <= max and the name is an identifier.

    >>> Axis("seq", 1, 128, 512).sizes()
    (1, 128, 512)
    """

    name: str
    min: int
    opt: int
    max: int
    terms: tuple[str | int, ...] = ()

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

    @property
    def rule(self) -> str:
        """How the size follows from other axes, such as "total = past + seq"; "" if it does not."""
        return f"{self.name} = {sum_text(self.terms)}" if self.terms else ""

    def size_among(self, sizes: Mapping[str, int]) -> int:
        """The size of a derived axis where those that it is made of have these sizes."""
        return _sum(self.terms, sizes)

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Reads `name=min:opt:max`, the form of the command line.

        >>> Axis.parse("batch=1:4:8").max
        8
        """
        name, _, sizes = text.partition("=")
        try:
            low, opt, high = (int(part) for part in sizes.split(":"))
        except ValueError:
            raise UsageError(
                f"axis {text!r} is not of the form name=min:opt:max, such as seq=1:128:512"
            ) from None
        return cls(name.strip(), low, opt, high)


@dataclass(frozen=True)
class AxisSum:
    """The declaration of a derived axis: what its size is the sum of.

    Attributes:
        name: The symbol, as it stands in the ONNX file.
        terms: Names of axes, and whole numbers.

    Raises:
        UsageError: If the name or a term is no identifier, or no term is the name of an axis.

    >>> AxisSum("total", ("past", "seq")).among({"past": Axis("past", 0, 8, 32), "seq": Axis("seq", 1, 1, 4)})
    Axis(name='total', min=1, opt=9, max=36, terms=('past', 'seq'))
    """

    name: str
    terms: tuple[str | int, ...]

    def __post_init__(self) -> None:
        names = [term for term in self.terms if isinstance(term, str)]
        if not names or not all(name.isidentifier() for name in (self.name, *names)):
            raise UsageError(
                f"axis {self.name!r} is declared as {sum_text(self.terms)!r}: give names of axes "
                "and whole numbers with + and - between them, such as total = past + seq"
            )

    def among(self, axes: Mapping[str, Axis]) -> Axis:
        """The axis, with the range that follows from those of the others.

        Raises:
            UsageError: If one is not among them, or is derived itself.
        """
        for term in self.terms:
            if isinstance(term, str) and (term not in axes or axes[term].terms):
                plain = ", ".join(name for name, axis in axes.items() if not axis.terms) or "none"
                raise UsageError(
                    f"axis {self.name!r} is declared as {sum_text(self.terms)}, and {term!r} is no "
                    f"axis with a range of its own (those are {plain}): add --axis {term}=1:2:8"
                )
        low, opt, high = (
            _sum(self.terms, {name: getattr(axis, which) for name, axis in axes.items()})
            for which in ("min", "opt", "max")
        )
        return Axis(self.name, low, opt, high, self.terms)

    @classmethod
    def parse(cls, text: str) -> AxisSum:
        """Reads `total = past + seq`.

        >>> AxisSum.parse("total = past + seq + 1")
        AxisSum(name='total', terms=('past', 'seq', 1))
        """
        name, _, terms = text.partition("=")
        return cls(name.strip(), sum_terms(terms))


AxisLike = Axis | AxisSum | tuple[int, int, int] | str


def parse_axis(text: str) -> Axis | AxisSum:
    """Reads `name=min:opt:max`, or `name=other+another` of a derived axis.

    Raises:
        UsageError: If it is neither.
    """
    _, equals, value = text.partition("=")
    derived = equals and ":" not in value and not value.strip().isdecimal()
    return AxisSum.parse(text) if derived and value.strip() else Axis.parse(text)


def sum_terms(text: str) -> tuple[str | int, ...]:
    """The terms of a sum as text; a word that is no number is taken for the name of an axis.

    >>> sum_terms("past + seq - 1")
    ('past', 'seq', -1)
    """
    signed = re.findall(r"([+-]?)([^+-]+)", "".join(text.split()))
    return tuple(
        int(sign + word) if word.isdecimal() else (f"-{word}" if sign == "-" else word)
        for sign, word in signed
    )


def sum_text(terms: Iterable[str | int]) -> str:
    """Terms as they are written.

    >>> sum_text(("past", "seq", -1))
    'past + seq - 1'
    """
    text = " + ".join(map(str, terms))
    return text.replace("+ -", "- ")


def _sum(terms: Iterable[str | int], sizes: Mapping[str, int]) -> int:
    return sum(sizes[term] if isinstance(term, str) else term for term in terms)


def with_sums(axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """The axes, with the range of every derived one as it follows from the others now.

    Raises:
        UsageError: If one that a derived axis is made of is not among them.
    """
    return {
        name: AxisSum(name, axis.terms).among(axes) if axis.terms else axis
        for name, axis in axes.items()
    }


def sizes_with_sums(axes: Mapping[str, Axis], sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the plain axes, and of the derived ones as they follow."""
    return {
        name: axis.size_among(sizes) if axis.terms else sizes[name]
        for name, axis in axes.items()
        if axis.terms or name in sizes
    }


def plain_axes(axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Those whose size may be chosen: all but the derived ones."""
    return {name: axis for name, axis in axes.items() if not axis.terms}


def axes_by_name(
    axes: Mapping[str, AxisLike] | Iterable[Axis | AxisSum],
) -> dict[str, Axis]:
    """Gathers axes, given by name or as a list, and gives derived ones their range.

    Args:
        axes: `{"seq": (1, 128, 512), "past": Axis(…), "total": "past + seq"}`, or a list of Axis
            and AxisSum.

    Raises:
        UsageError: If a name is given twice, a key and its Axis disagree, or a derived axis is
            made of one that is not there.
    """
    found: dict[str, Axis] = {}
    sums: dict[str, AxisSum] = {}
    items: Iterable[tuple[str, AxisLike]]
    items = axes.items() if isinstance(axes, Mapping) else ((axis.name, axis) for axis in axes)
    order: list[str] = []
    for name, value in items:
        axis = axis_of(name, value)
        if axis.name != name:
            raise UsageError(f"axis {axis.name!r} is given under the name {name!r}: use one name")
        if name in order:
            raise UsageError(f"axis {name!r} is given twice: give each axis once")
        order.append(name)
        if isinstance(axis, AxisSum):
            sums[name] = axis
        elif axis.terms:
            sums[name] = AxisSum(name, axis.terms)
        else:
            found[name] = axis
    derived = {name: declared.among(found) for name, declared in sums.items()}
    return {name: found[name] if name in found else derived[name] for name in order}


def axis_of(name: str, value: AxisLike) -> Axis | AxisSum:
    """An axis from what it may be given as: a range, a sum as text, or itself."""
    if isinstance(value, (Axis, AxisSum)):
        return value
    if isinstance(value, str):
        return AxisSum(name, sum_terms(value))
    sizes = tuple(value)
    if len(sizes) != 3:
        raise UsageError(f"axis {name!r} has the sizes {sizes}: give its (min, opt, max)")
    return Axis(name, *sizes)
