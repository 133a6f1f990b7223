"""Guards: what torch asked about sizes while it captured a module, tried at every size declared.

torch.export refuses ranges for which it cannot show in symbols that a guard holds: (2n - 1) % n != 0
holds for every n from 2 on, and still is refused. So the module is captured with ranges of torch's
own choice, and each guard is computed at every size of the declared ranges. Where one does not hold
at a few single sizes (a buffer of 64 rows, cut to 64, is the buffer itself), the captured graph is
run there against the module: what is computed must be the same, bit by bit.
"""

from __future__ import annotations

import glob
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from attnport.axes import Axis
from attnport.export.dynamic_shapes import Example

Sizes = dict[str, int]

# Sizes at which the module is run since a guard does not hold there; more is another graph.
_MOST_RUN = 3
# Sizes at which a guard is computed: all, or of each axis so many that no more come of it.
_MOST_TRIED = 1 << 16


class GuardError(Exception):
    """Why the captured graph is not right at every size: a clause."""


@dataclass(frozen=True)
class _Guard:
    """One question about sizes.

    Attributes:
        text: As torch writes it, with the names of axes.
        place: Where it was asked.
        axes: The axes that it is about.
        holds: Computes it.
    """

    text: str
    place: str
    axes: tuple[str, ...]
    holds: Callable[[Sizes], bool]


def require_guards(
    program: torch.export.ExportedProgram,
    module: torch.nn.Module,
    example: Example,
    axes: Mapping[str, Axis],
) -> None:
    """Shows that a program captured with torch's own ranges is right for the declared ones.

    Its range constraints are the declared ones afterwards.

    Args:
        program: What was captured.
        module: What it was captured of.
        example: The inputs that it was captured with.
        axes: The declared ranges.

    Raises:
        GuardError: If a guard does not hold somewhere, or could not be computed.
    """
    symbols = _axes_of_symbols(program, example, axes)
    suspects = [_smallest(axes)]
    for guard in _guards(program, symbols):
        failing = list(itertools.islice(_failing(guard, axes), _MOST_RUN + 1))
        if len(failing) > _MOST_RUN:
            at = ", ".join(f"{name} {size}" for name, size in failing[0].items())
            raise GuardError(f"it must be that {guard.text}{guard.place}, which fails at {at}")
        suspects += [{**_usual(axes), **sizes} for sizes in failing]
        suspects += [{**_smallest(axes), **sizes} for sizes in failing]
    for sizes in {tuple(sizes.items()): sizes for sizes in suspects}.values():
        _require_same(program, module, example, axes, sizes)
    for symbol, name in symbols.items():
        if symbol in program.range_constraints:
            known = program.range_constraints[symbol]
            program.range_constraints[symbol] = type(known)(axes[name].min, axes[name].max)


def _axes_of_symbols(
    program: torch.export.ExportedProgram, example: Example, axes: Mapping[str, Axis]
) -> dict[Any, str]:
    """Torch's symbol of each axis; several where inputs have the same axis."""
    found: dict[Any, str] = {}
    for node in program.graph.nodes:
        for dim, name in (
            example.dims.get(node.name, {}).items() if node.op == "placeholder" else ()
        ):
            size = node.meta["val"].shape[dim]
            axis = axes[name]
            if axis.terms or axis.min == axis.max:
                continue
            if isinstance(size, int) or not size.node.expr.is_symbol:
                raise GuardError(f"{name} of {node.name} is {size} in what torch captured")
            found[size.node.expr] = name
    return found


def _guards(program: torch.export.ExportedProgram, symbols: Mapping[Any, str]) -> Iterator[_Guard]:
    environments = {
        id(size.node.shape_env): size.node.shape_env
        for node in program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
    }
    for environment in environments.values():
        for guard in environment.guards:
            expression = guard.expr.xreplace(environment.replacements)
            names = {symbol: symbols.get(symbol) for symbol in expression.free_symbols}
            place = f" (asked at {whole_path(str(guard.sloc).strip('()'))})"
            if None in names.values():
                raise GuardError(f"{expression}{place} is about sizes that no axis has")
            text = _with_names(str(expression), names)
            yield _Guard(
                text, place, tuple(sorted({str(name) for name in names.values()})),
                _computed(expression, {str(s): str(name) for s, name in names.items()}),
            )  # fmt: skip


def _with_names(text: str, names: Mapping[Any, str | None]) -> str:
    known = {str(symbol): str(name) for symbol, name in names.items()}
    return re.sub(r"\bs\d+\b", lambda found: known.get(found[0], found[0]), text)


def _computed(expression: Any, names: Mapping[str, str]) -> Callable[[Sizes], bool]:
    code = compile(PythonPrinter().doprint(expression), "<guard>", "eval")
    known = {"math": math, "max": max, "min": min, "abs": abs, "__builtins__": {}}

    def holds(sizes: Sizes) -> bool:
        numbers = {symbol: sizes[name] for symbol, name in names.items()}
        try:
            return bool(eval(code, known, numbers))
        except ZeroDivisionError:
            return False
        except NameError as err:
            raise GuardError(f"{expression} could not be computed ({err})") from err

    return holds


def _failing(guard: _Guard, axes: Mapping[str, Axis]) -> Iterator[Sizes]:
    """The declared sizes at which the guard does not hold, from all, or from many."""
    each = int(_MOST_TRIED ** (1 / max(len(guard.axes), 1)))
    ranges = [_tried(axes[name], each) for name in guard.axes]
    for sizes in itertools.product(*ranges):
        one = dict(zip(guard.axes, sizes, strict=True))
        if not guard.holds(one):
            yield one


def _tried(axis: Axis, most: int) -> Sequence[int]:
    """Every size; of a huge range both ends, the usual size, and some spread between."""
    whole = range(axis.min, axis.max + 1)
    if len(whole) <= most:
        return whole
    part = most // 3
    spread = {round(axis.min + i * (axis.max - axis.min) / part) for i in range(part + 1)}
    return sorted({*whole[:part], *whole[-part:], *spread, axis.opt})


def _smallest(axes: Mapping[str, Axis]) -> Sizes:
    """Torch takes every size for 2 or more, whatever is declared, so the smallest is looked at."""
    return {name: axis.min for name, axis in axes.items() if not axis.terms}


def _usual(axes: Mapping[str, Axis]) -> Sizes:
    return {name: axis.opt for name, axis in axes.items() if not axis.terms}


def _require_same(
    program: torch.export.ExportedProgram,
    module: torch.nn.Module,
    example: Example,
    axes: Mapping[str, Axis],
    sizes: Sizes,
) -> None:
    """Runs the captured graph and the module on the example, resized."""
    at = ", ".join(f"{name} {size}" for name, size in sizes.items())
    inputs = _resized(example, axes, sizes)
    try:
        captured = program.module(check_guards=False)(*inputs[0], **inputs[1])
        plain = module(*inputs[0], **inputs[1])
    except Exception as err:
        said = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise GuardError(
            f"what was captured, or the module itself, fails at {at} ({said})"
        ) from err
    for one, other in zip(pytree.tree_leaves(captured), pytree.tree_leaves(plain), strict=True):
        if isinstance(other, torch.Tensor) and not _same(one, other):
            raise GuardError(f"what was captured computes something else than the module at {at}")


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.nan_to_num() if one.is_floating_point() else one,
                       other.nan_to_num() if other.is_floating_point() else other)  # fmt: skip


def _resized(
    example: Example, axes: Mapping[str, Axis], sizes: Sizes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example's arguments with other sizes, repeated or cut."""
    changed = {}
    for name, tensor in zip(example.names, example.tensors, strict=True):
        resized = tensor
        for dim, symbol in example.dims[name].items():
            axis = axes[symbol]
            size = axis.size_among(sizes) if axis.terms else sizes[symbol]
            index = torch.arange(size, device=tensor.device) % max(resized.shape[dim], 1)
            resized = resized.index_select(dim, index)
        changed[id(tensor)] = resized
    return (
        tuple(changed.get(id(arg), arg) for arg in example.args),
        {key: changed.get(id(arg), arg) for key, arg in example.kwargs.items()},
    )


def guarding_line(size: Any) -> str:
    """Where the module asked for the size, as torch recorded it."""
    for guard in size.node.shape_env.guards:
        place = str(guard.sloc)
        if size.node.expr in guard.expr.free_symbols and "_subclasses/" not in place:
            return f" ({guard.expr}, asked at {whole_path(place.strip('()'))})"
    return ""


def whole_path(place: str) -> str:
    """Gives back what torch 2.13 cuts from a path: what it shares with torch's own, and a letter."""
    file, colon, rest = place.partition(":")
    home = Path(torch.__file__).parent.parent
    for parent in (home, *home.parents):
        if (parent / file).is_file():
            return f"{parent / file}{colon}{rest}"
    cut = glob.glob(f"/?{glob.escape(file)}")
    return f"{cut[0]}{colon}{rest}" if len(cut) == 1 else place
