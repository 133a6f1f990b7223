"""One model of the registry: how it is made from its sizes, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.models.literals import parse_value

Size = int | bool | float | str
# A size's type, or the words that it may be.
SizeType = type | tuple[str, ...]
_WANTED = {bool: "true or false", int: "a whole number of 1 or more", float: "a number above 0"}


@dataclass(frozen=True)
class Entry:
    """One model of the registry.

    Attributes:
        base: The name that it has in a source.
        module: Makes it from its sizes.
        inputs: The arguments of forward; the dimension "d_model" stands for that size. Or what
            gives them from the sizes.
        summary: One line for people.
        defaults: The sizes that it has if not told otherwise.
        optional: Further sizes, by type, which the module has a default for.
        fixed: The sizes that belong to the name and cannot be set.
        axes: Gives the ranges of its axes from its sizes, in place of the registry's own.
    """

    base: str
    module: Callable[..., nn.Module]
    inputs: tuple[str, ...] | Callable[[Mapping[str, Size]], tuple[str, ...]]
    summary: str
    defaults: Mapping[str, Size]
    optional: Mapping[str, SizeType]
    fixed: frozenset[str] = frozenset()
    axes: Callable[[Mapping[str, Size]], tuple[Axis, ...]] | None = None

    def size_types(self) -> dict[str, SizeType]:
        """The sizes that can be set, with the type of each."""
        defaults = {name: type(size) for name, size in self.defaults.items()}
        types: dict[str, SizeType] = {**defaults, **self.optional}
        return {name: kind for name, kind in types.items() if name not in self.fixed}

    def input_texts(self, sizes: Mapping[str, Size]) -> tuple[str, ...]:
        """The arguments of forward at these sizes."""
        return self.inputs(sizes) if callable(self.inputs) else self.inputs

    def checked_size(self, name: str, key: str, value: object) -> Size:
        """A size as it is given, read and checked.

        Args:
            name: What the user calls the model.
            key: The size.
            value: Its value, or text that says it.

        Raises:
            UsageError: If the model has no such size, or it has another type.
        """
        types = self.size_types()
        if key in self.fixed:
            raise UsageError(
                f"{name!r} has {key}={self.defaults[key]} in its name: "
                f"use {self.base!r} to set {key} yourself"
            )
        if key not in types:
            raise UsageError(f"{name!r} has no size {key!r}: it takes {', '.join(types)}")
        read = parse_value(value) if isinstance(value, str) else value
        kind = types[key]
        if isinstance(kind, tuple):
            if isinstance(read, str) and read in kind:
                return read
            raise UsageError(f"{key}={value} does not suit {name!r}: give {' or '.join(kind)}")
        if kind is bool and isinstance(read, bool):
            return read
        number = read if isinstance(read, int | float) and not isinstance(read, bool) else 0
        if kind is not bool and number > 0 and (kind is float or isinstance(number, int)):
            return number
        raise UsageError(f"{key}={value} does not suit {name!r}: give {_WANTED[kind]}")


def type_text(kind: SizeType) -> str:
    """A size's type in a word or two."""
    return "|".join(kind) if isinstance(kind, tuple) else kind.__name__
