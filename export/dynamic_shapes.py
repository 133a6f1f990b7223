"""From names of axes to torch.export's dynamic shapes, and example inputs that leave them dynamic."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnport.axes import Axis
from attnport.errors import ModuleError, UsageError
from attnport.export.example_sums import as_long_as_the_sum, require_sums

# As the user gives them: one entry for each argument, as torch.export takes them.
DynamicShapes = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """The arguments that a module is captured with.

    Attributes:
        args: By position.
        kwargs: By name.
        names: For each tensor among them its name, in the order of forward's parameters.
        dims: For each of these names which axis stands at which dimension.
        others: The names of arguments that are no tensors (None, a flag).
        tensors: The tensors, in the order of `names`.
        rest: Of a forward with *args the parameter's name, and the names of the tensors in it.
        keywords: The same of **kwargs.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    dims: dict[str, dict[int, str]]
    others: tuple[str, ...] = ()
    tensors: tuple[torch.Tensor, ...] = ()
    rest: tuple[str, tuple[str, ...]] | None = None
    keywords: tuple[str, tuple[str, ...]] | None = None


def bind_example(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: DynamicShapes,
    axes: Mapping[str, Axis],
) -> Example:
    """Names every tensor, and says which of its dimensions is which axis.

    Dimensions whose example has size 1 are repeated to 2, where their range allows: torch.export
    takes a size of 1 for a constant (torch 2.13).

    Raises:
        ModuleError: If the arguments do not fit forward.
        UsageError: If a name in `dynamic_shapes` has no axis, or an axis is never used.
    """
    args, kwargs = _distinct(args, kwargs)
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as err:
        raise ModuleError(
            f"the example inputs do not fit {type(module).__name__}.forward ({err}); its signature "
            f"is forward{signature}"
        ) from err
    named = _named_tensors(bound, signature)
    dims = _dims_by_name(dynamic_shapes, list(bound.arguments), named, axes)
    used = {axis for by_dim in dims.values() for axis in by_dim.values()}
    unused = set(axes) - used - {t for axis in axes.values() for t in axis.terms}
    if unused:
        raise UsageError(
            f"the axes {', '.join(sorted(unused))} are given but no input has them: name them in "
            "dynamic_shapes, or leave them out"
        )
    require_sums(named, dims, axes)
    enlarged = {
        name: _enlarged(name, tensor, dims.get(name, {}), axes) for name, tensor in named.items()
    }
    _require_one_size(enlarged, dims, axes)
    sizes = {axis: enlarged[n].shape[at] for n, by in dims.items() for at, axis in by.items()}
    enlarged = {
        name: as_long_as_the_sum(tensor, dims.get(name, {}), axes, sizes)
        for name, tensor in enlarged.items()
    }
    replace = {id(named[name]): tensor for name, tensor in enlarged.items()}
    return Example(
        args=tuple(replace.get(id(arg), arg) for arg in args),
        kwargs={key: replace.get(id(arg), arg) for key, arg in kwargs.items()},
        names=tuple(named),
        dims={name: dims.get(name, {}) for name in named},
        others=tuple(name for name, value in bound.arguments.items() if _is_plain(value)),
        tensors=tuple(enlarged.values()),
        rest=_gathered(bound, signature, inspect.Parameter.VAR_POSITIONAL),
        keywords=_gathered(bound, signature, inspect.Parameter.VAR_KEYWORD),
    )


def _distinct(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor that is given twice, copied: torch.export 2.13 takes it for one input."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        again = id(value) in seen
        seen.add(id(value))
        return value.clone() if again and isinstance(value, torch.Tensor) else value

    return tuple(map(own, args)), {name: own(value) for name, value in kwargs.items()}


def _named_tensors(
    bound: inspect.BoundArguments, signature: inspect.Signature
) -> dict[str, torch.Tensor]:
    named: dict[str, torch.Tensor] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}_{i}": v for i, v in enumerate(value) if _is_tensor(v)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named |= {key: v for key, v in value.items() if _is_tensor(v)}
        elif _is_tensor(value):
            named[name] = value
        elif isinstance(value, (list, tuple, dict)):
            raise ModuleError(
                f"forward's {name} is a {type(value).__name__}: inputs must be tensors, so wrap the "
                "module in one whose forward takes them one by one"
            )
    if not named:
        raise ModuleError("no example input is a tensor: give args=(tensor, …)")
    return named


def _gathered(
    bound: inspect.BoundArguments, signature: inspect.Signature, kind: inspect._ParameterKind
) -> tuple[str, tuple[str, ...]] | None:
    """The parameter of this kind with what `_named_tensors` calls the tensors in it."""
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is kind:
            names = (
                value if isinstance(value, dict) else [f"{name}_{i}" for i in range(len(value))]
            )
            return name, tuple(names)
    return None


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _dims_by_name(
    given: DynamicShapes,
    parameters: Sequence[str],
    named: Mapping[str, torch.Tensor],
    axes: Mapping[str, Axis],
) -> dict[str, dict[int, str]]:
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        entries = list(given)
        flat = [e for entry in entries for e in (entry if _is_nested(entry) else [entry])]
        one_each = any(map(_is_nested, entries)) or len(flat) > len(parameters)  # of *args, too
        names = list(named) if one_each else list(parameters)
        if len(flat) > len(names):
            raise UsageError(
                f"dynamic_shapes has {len(flat)} entries for {len(names)} inputs "
                f"({', '.join(names)}): give one for each, None where nothing is dynamic"
            )
        pairs = list(zip(names, flat, strict=False))
    return {name: _dims_of(name, entry, named, axes) for name, entry in pairs if entry}


def _is_nested(entry: object) -> bool:
    """An entry for *args is a tuple of entries; an entry for one tensor may be a list of axes."""
    return isinstance(entry, (list, tuple)) and any(isinstance(e, (dict, list)) for e in entry)


def _dims_of(
    name: str, entry: Any, named: Mapping[str, torch.Tensor], axes: Mapping[str, Axis]
) -> dict[int, str]:
    if name not in named:
        raise UsageError(
            f"dynamic_shapes names {name!r}, which is no tensor among the example inputs: "
            f"{', '.join(named)}"
        )
    by_dim = entry if isinstance(entry, Mapping) else dict(enumerate(entry))
    dims: dict[int, str] = {}
    for dim, symbol in by_dim.items():
        if symbol is None:
            continue
        axis = symbol if isinstance(symbol, str) else getattr(symbol, "__name__", str(symbol))
        rank = named[name].dim()
        if not -rank <= dim < rank:
            raise UsageError(f"dynamic_shapes gives dimension {dim} of {name}, which has {rank}")
        if axis not in axes:
            raise UsageError(
                f"axis {axis!r} of {name} has no range: give axes={{{axis!r}: (min, opt, max)}}"
            )
        dims[dim % rank] = axis
    return dims


def _enlarged(
    name: str, tensor: torch.Tensor, dims: Mapping[int, str], axes: Mapping[str, Axis]
) -> torch.Tensor:
    for dim, symbol in dims.items():
        axis = axes[symbol]
        size = tensor.shape[dim]
        if axis.terms:
            continue
        if size == 1 and axis.max >= 2:
            tensor = torch.cat([tensor, tensor], dim)
        elif size == 0 and axis.max >= 2:
            shape = [2 if at == dim else length for at, length in enumerate(tensor.shape)]
            tensor = tensor.new_zeros(shape)
        elif axis.min == axis.max and size != axis.min:
            raise UsageError(
                f"axis {symbol!r} is fixed at {axis.min}, and dimension {dim} of the example "
                f"{name} has {size}: give an example of that size"
            )
    return tensor


def _require_one_size(
    tensors: Mapping[str, torch.Tensor],
    dims: Mapping[str, Mapping[int, str]],
    axes: Mapping[str, Axis],
) -> None:
    """Every axis has one size in the example, and one within its range."""
    seen: dict[str, tuple[str, int]] = {}
    for name, by_dim in dims.items():
        for dim, symbol in by_dim.items():
            size, axis = tensors[name].shape[dim], axes[symbol]
            if axis.terms:
                continue
            if size not in axis:
                raise UsageError(
                    f"axis {symbol!r} is {axis.min} to {axis.max}, and dimension {dim} of the "
                    f"example {name} has {size}: give an example within the range"
                )
            other, known = seen.setdefault(symbol, (name, size))
            if known != size:
                raise UsageError(
                    f"axis {symbol!r} is {known} in the example {other} and {size} in {name}: give "
                    "examples of one size, or the dimensions two axes"
                )


def torch_shapes(
    example: Example, axes: Mapping[str, Axis], *, automatic: bool = False
) -> dict[str, Any]:
    """What torch.export takes: a Dim for each axis that is not fixed.

    A derived axis is left to torch to find, which knows no sum of two Dims (2.13); that it found
    the declared one is checked afterwards.

    Args:
        example: The example inputs.
        axes: The ranges.
        automatic: Let torch find the ranges, instead of holding it to ours.
    """
    auto = torch.export.Dim.AUTO
    shared = {
        name: auto
        if automatic or axis.terms
        else torch.export.Dim(name, min=axis.min, max=axis.max)
        for name, axis in axes.items()
        if axis.min < axis.max
    }
    shapes: dict[str, Any] = {
        name: {dim: shared[axis] for dim, axis in dims.items() if axis in shared} or None
        for name, dims in example.dims.items()
    }
    shapes |= dict.fromkeys(example.others)
    if example.rest is not None:
        name, names = example.rest
        shapes[name] = tuple(shapes.pop(each, None) for each in names)
    if example.keywords is not None:
        name, names = example.keywords
        shapes[name] = {each: shapes.pop(each, None) for each in names}
    return shapes
