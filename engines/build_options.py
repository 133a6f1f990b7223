"""What may be asked of a TensorRT build beyond the bundle itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from attnport.axes import Axis, with_sums
from attnport.errors import UsageError
from attnport.export.records import Record

Sizes = tuple[int, int, int]
FormWish = Literal["table", "auto", "as-written", "batch-first", "sequence-first", "separate"]

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|)")
_TARGET = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)", re.IGNORECASE)
# The range of IBuilderConfig.builder_optimization_level; TensorRT takes 9 for 5 without a word.
_HIGHEST_LEVEL = 5


class BuildOptions(Record):
    """Options of one build; the defaults are TensorRT's own.

    Attributes:
        profiles: For each optimization profile the (min, opt, max) of the axes in which it differs
            from the bundle; none for one profile of the bundle's own ranges.
        targets: The compute capabilities to build for, as 10 times major plus minor (89 for 8.9);
            none for the library's default. TensorRT for RTX only.
        workspace_bytes: The most device memory that a kernel may use beside its tensors.
        optimization_level: 0 (builds fastest) to 5 (searches longest).
        timing_cache: A file of kernel timings that is read, if it is there, and written.
        version_compatible: Whether later versions of TensorRT shall run the plan.
        weight_stripped: Whether the plan shall come without its weights.
        refittable: Whether its weights shall be replaceable.
        form: What the graph is given to TensorRT as: what the table of `lowering_table` says; the
            form whose plan has the fewest kernels of all that were built ("auto"); or this one.
    """

    profiles: tuple[dict[str, Sizes], ...] = ()
    targets: tuple[int, ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = None
    version_compatible: bool = False
    weight_stripped: bool = False
    refittable: bool = False
    form: FormWish = "table"

    @classmethod
    def checked(cls, **values: object) -> BuildOptions:
        """Options from what a person gave.

        Raises:
            UsageError: If a name or a value is not one; says which are.
        """
        try:
            options = cls.model_validate(values)
        except ValidationError as err:
            first = err.errors()[0]
            name = ".".join(map(str, first["loc"]))
            known = ", ".join(cls.model_fields)
            raise UsageError(
                f"build option {name!r} is {first['input']!r}: {first['msg'].lower()}; the options "
                f"are {known}"
            ) from err
        options.require_valid()
        return options

    def require_valid(self) -> None:
        """Raises UsageError for a value that no TensorRT takes."""
        if self.workspace_bytes is not None and self.workspace_bytes < 1:
            raise UsageError(
                f"the workspace is {self.workspace_bytes} bytes: give 1 or more, such as 256MiB"
            )
        if (self.weight_stripped or self.refittable) and self.form not in ("table", "as-written"):
            raise UsageError(
                f"the form is {self.form!r}, and the plan's weights shall be replaceable, which "
                "is done from model.onnx: leave the form out, or give as-written"
            )
        level = self.optimization_level
        if level is not None and not 0 <= level <= _HIGHEST_LEVEL:
            raise UsageError(f"the optimization level is {level}: give 0 to {_HIGHEST_LEVEL}")
        for number, sizes in enumerate(self.profiles):
            for name, triple in sizes.items():
                _require_ordered(number, name, triple)


def parse_bytes(text: str) -> int:
    """Reads a number of bytes such as `1073741824`, `256MiB` or `1.5GiB`.

    Raises:
        UsageError: If it is none.
    """
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size: give bytes, or a number with KiB, MiB or GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_target(text: str) -> int:
    """Reads a compute capability: `89`, `8.9`, `sm_89`.

    Raises:
        UsageError: If it is none.
    """
    found = _TARGET.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no compute capability: give one such as 89, 8.9 or sm_89")
    return int(found[1]) * 10 + int(found[2])


def parse_profile(text: str) -> dict[str, Sizes]:
    """Reads the axes in which a profile differs: `seq=1`, `batch=1:4:8,seq=2:128:512`.

    Raises:
        UsageError: If the text has another form, or min <= opt <= max does not hold.
    """
    sizes: dict[str, Sizes] = {}
    for part in text.split(","):
        name, equals, numbers = part.strip().partition("=")
        if equals and numbers.isdecimal():
            numbers = f"{numbers}:{numbers}:{numbers}"
        axis = Axis.parse(f"{name}={numbers}")
        if axis.name in sizes:
            raise UsageError(f"the profile {text!r} gives {axis.name} twice: give it once")
        sizes[axis.name] = (axis.min, axis.opt, axis.max)
    return sizes


def profile_axes(
    profiles: Sequence[Mapping[str, Sizes]], axes: Mapping[str, Axis]
) -> tuple[dict[str, Axis], ...]:
    """The ranges of every axis in every profile; of derived ones as they follow there.

    Args:
        profiles: Where each differs from the bundle; none for one profile that does not.
        axes: The bundle's axes.

    Raises:
        UsageError: If an axis does not exist, or a range leaves the bundle's.
    """
    return tuple(
        with_sums(
            dict(axes)
            | {name: _within(number, Axis(name, *sizes), axes) for name, sizes in own.items()}
        )
        for number, own in enumerate(profiles or ({},))
    )


def _within(number: int, asked: Axis, axes: Mapping[str, Axis]) -> Axis:
    whole = axes.get(asked.name)
    if whole is None:
        known = ", ".join(axes) or "none, it is static"
        raise UsageError(
            f"profile {number} gives the axis {asked.name!r}, which the bundle has not; its axes: "
            f"{known}"
        )
    if whole.terms:
        raise UsageError(
            f"profile {number} gives the axis {asked.name!r}, which follows from others "
            f"({whole.rule}): give those"
        )
    if asked.min < whole.min or asked.max > whole.max:
        raise UsageError(
            f"profile {number} takes {asked.name} from {asked.min} to {asked.max}, and the bundle "
            f"{whole.min} to {whole.max}: stay within, or export again with a wider range"
        )
    return asked


def _require_ordered(number: int, name: str, sizes: Sizes) -> None:
    try:
        Axis(name, *sizes)
    except UsageError as err:
        raise UsageError(f"profile {number}: {err}") from err
