"""Example arguments that a factory gives with its module, checked and made to fit other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnport.errors import ModuleError, UsageError
from attnport.models.spec import DynamicShapes


def checked_args(args: object, source: str) -> tuple[Tensor, ...]:
    """The arguments as a tuple of tensors; a single tensor is taken as one argument.

    Raises:
        ModuleError: If they are anything else, or one has no elements.
    """
    given = (args,) if isinstance(args, Tensor) else args
    if not isinstance(given, tuple | list):
        raise ModuleError(
            f"{source} gives {type(args).__name__} as example arguments: give a tuple of tensors"
        )
    for i, arg in enumerate(given):
        if not isinstance(arg, Tensor) or arg.numel() == 0:
            what = "an empty tensor" if isinstance(arg, Tensor) else repr(type(arg).__name__)
            raise ModuleError(
                f"{source} gives {what} as example argument {i}: give tensors with elements, "
                "and bind everything else inside the module"
            )
    return tuple(given)


def checked_dynamic_shapes(shapes: object, args: Sequence[Tensor], source: str) -> DynamicShapes:
    """The dynamic shapes in the one form that the other rooms know.

    Raises:
        ModuleError: If there is not one for each argument, or one is not of the form
            {dimension: "axis"}.
    """
    example = '({0: "batch", 1: "seq"}, None)'
    if not isinstance(shapes, tuple | list) or len(shapes) != len(args):
        raise ModuleError(
            f"{source} gives dynamic shapes {shapes!r} for {len(args)} arguments: "
            f"give a tuple with an entry for each argument, such as {example}"
        )
    for i, (shape, arg) in enumerate(zip(shapes, args, strict=True)):
        fits = shape is None or (
            isinstance(shape, dict)
            and all(isinstance(dim, int) and 0 <= dim < arg.dim() for dim in shape)
            and all(isinstance(axis, str) for axis in shape.values())
        )
        if not fits:
            raise ModuleError(
                f"{source} gives dynamic shape {shape!r} for argument {i} of shape "
                f"{tuple(arg.shape)}: give None or the axis of each dimension by name, "
                f"such as {example}"
            )
    return tuple(dict(shape) if shape else None for shape in shapes)


def resized_args(
    args: Sequence[Tensor], dynamic_shapes: DynamicShapes, sizes: Mapping[str, int]
) -> tuple[Tensor, ...]:
    """The examples at other sizes, cut off or repeated: their values stay valid for the module.

    Raises:
        UsageError: If an axis has no size.
    """
    resized = []
    for arg, shape in zip(args, dynamic_shapes, strict=True):
        for dim, axis in (shape or {}).items():
            if axis not in sizes:
                raise UsageError(f"no size was given for {axis}: give one for each axis")
            index = torch.arange(sizes[axis], device=arg.device) % arg.size(dim)
            arg = arg.index_select(dim, index)
        resized.append(arg)
    return tuple(resized)
