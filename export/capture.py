"""From a module to an ONNX graph, by torch.export and torch.onnx.

What torch finds to hold for fewer sizes than were declared is refused here: the ONNX file would not
say it, and give wrong results at the other sizes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnport.axes import Axis
from attnport.errors import ModuleError, NarrowedRangeError, UsageError
from attnport.export import capture_operator
from attnport.export.derived_axes import name_derived_axes, require_declared_sums
from attnport.export.dynamic_shapes import Example, torch_shapes
from attnport.export.guards import GuardError, guarding_line, require_guards
from attnport.export.module_forms import dtype_name, slow_path
from attnport.export.repair_program import widen_reversed_subtractions


def onnx_from_module(
    module: torch.nn.Module,
    example: Example,
    axes: Mapping[str, Axis],
    opset: int,
    *,
    exactly: bool = True,
) -> ir.Model:
    """Captures a module as an ONNX graph whose symbols are the axes' names.

    Args:
        module: In the dtype and mode that it is exported in.
        example: Inputs to capture it with.
        axes: The range of each axis.
        opset: Of the graph.
        exactly: Whether it may not be higher, where an operator needs that.

    Raises:
        UsageError: If the opset is lower than what the module needs.
        NarrowedRangeError: If the captured graph would be right for fewer sizes than declared.
        ModuleError: If torch cannot capture or translate the module.
    """
    with _quiet(), torch.no_grad(), slow_path(), sdpa_kernel(SDPBackend.MATH):
        program = _exported(module, example, axes)
        _require_declared_ranges(program, example, axes)
        widen_reversed_subtractions(program)
        # torch.onnx 2.13 pairs these with the tensors alone: a None among them would shift them.
        shapes = torch_shapes(example, axes)
        shapes = {name: shape for name, shape in shapes.items() if name not in example.others}
        needed = capture_operator.lowest_opset(program)
        if needed > opset and exactly:
            raise UsageError(
                f"opset {opset} was asked for, and {type(module).__name__} writes into a cache in "
                f"place (TensorScatter), which begins with {needed}: ask for that, or for none"
            )
        try:
            onnx_program = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=max(opset, needed),
                dynamic_shapes=shapes,
                custom_translation_table=capture_operator.translation_table(),
                verbose=False,
            )
        except Exception as err:
            raise ModuleError(
                f"torch.onnx has no translation for {type(module).__name__}: {_summary(err)}"
            ) from err
    assert onnx_program is not None
    name_derived_axes(onnx_program.model.graph, example, axes)
    return onnx_program.model


def _exported(
    module: torch.nn.Module, example: Example, axes: Mapping[str, Axis]
) -> torch.export.ExportedProgram:
    try:
        return _export(module, example, torch_shapes(example, axes))
    except Exception as err:
        if "onstraint" in str(err) or "pecialized" in str(err):
            program, cause = _with_other_ranges(module, example, axes)
            if program is not None:
                return program
            raise NarrowedRangeError(
                f"{type(module).__name__} works on fewer sizes than declared"
                f"{cause or ': ' + _violation(err)}: narrow the axis to what the module means, or "
                "write it so that it does not ask for the size"
            ) from err
        _require_that_it_runs(module, example)
        remedy = ": ask for no value of a tensor (torch.where in place of if)"
        raise ModuleError(
            f"torch.export cannot capture {type(module).__name__}: {_summary(err)}"
            f"{remedy if 'data-dependent' in str(err) else ''}"
        ) from err


def _require_that_it_runs(module: torch.nn.Module, example: Example) -> None:
    """Tells a module that fails by itself from one that only torch.export cannot take."""
    try:
        module(*example.args, **example.kwargs)
    except Exception as err:
        given = ", ".join(
            f"{name} {dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
            for name, tensor in zip(example.names, example.tensors, strict=True)
        )
        first = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise ModuleError(
            f"{type(module).__name__} itself fails on the inputs {given}: "
            f"{first}{_own_line(err)}: mend it, or give it inputs that it takes"
        ) from err


def _own_line(error: BaseException) -> str:
    """The innermost line of what was raised that is not torch's own."""
    torch_home = str(Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((torch_home, __file__, "<")):
            return f" (at {frame.filename}:{frame.lineno})"
    return ""


def _export(
    module: torch.nn.Module, example: Example, shapes: dict[str, Any]
) -> torch.export.ExportedProgram:
    # torch 2.13 prints the graph so far where it fails, past its own loggers.
    with contextlib.redirect_stderr(io.StringIO()):
        return torch.export.export(
            module, example.args, example.kwargs, dynamic_shapes=shapes, strict=False
        )


def _with_other_ranges(
    module: torch.nn.Module, example: Example, axes: Mapping[str, Axis]
) -> tuple[torch.export.ExportedProgram | None, str]:
    """Captures once more with ranges of torch's own choice.

    Returns:
        The program, if it was shown to be right for what is declared; else None, and why not.
    """
    try:
        program = _export(module, example, torch_shapes(example, axes, automatic=True))
    except Exception:
        return None, ""
    narrowed = _what_narrows(program, example, axes)
    if narrowed:
        return None, narrowed
    try:
        require_guards(program, module, example, axes)
    except GuardError as err:
        return None, f": {err}"
    return program, ""


def _what_narrows(
    program: torch.export.ExportedProgram, example: Example, axes: Mapping[str, Axis]
) -> str:
    """The axis, the range that is left, and the line that asked; "" where all of it is."""
    for name, dim, axis in _dynamic_dims(example, axes):
        size = _placeholder_sizes(program, name)[dim]
        if isinstance(size, int):
            return f": {name}'s {axis.name} is fixed at {size}"
        low, high = _range(program, size)
        if max(low, axis.min) > max(axis.min, 2) or high < axis.max:
            at = guarding_line(size)
            high = min(high, axis.max)
            return f": {axis.name} is {axis.min} to {axis.max}, and {low} to {high} is left{at}"
    return ""


def _require_declared_ranges(
    program: torch.export.ExportedProgram, example: Example, axes: Mapping[str, Axis]
) -> None:
    for name, dim, axis in _dynamic_dims(example, axes):
        size = _placeholder_sizes(program, name)[dim]
        low, high = (size, size) if isinstance(size, int) else _range(program, size)
        if low > axis.min or high < axis.max:
            at = "" if isinstance(size, int) else guarding_line(size)
            raise NarrowedRangeError(
                f"{axis.name} of {name} is declared as {axis.min} to {axis.max}, and the captured "
                f"graph is right for {low} to {high} only{at}: narrow the axis, or write the "
                "module so that it does not ask for the size"
            )
    sizes = {
        name: _placeholder_sizes(program, name) for name, dims in example.dims.items() if dims
    }
    require_declared_sums(sizes, example, axes)


def _dynamic_dims(example: Example, axes: Mapping[str, Axis]) -> Iterator[tuple[str, int, Axis]]:
    for name, dims in example.dims.items():
        for dim, symbol in dims.items():
            if axes[symbol].min < axes[symbol].max and not axes[symbol].terms:
                yield name, dim, axes[symbol]


def _placeholder_sizes(program: torch.export.ExportedProgram, name: str) -> tuple[Any, ...]:
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name == name:
            return tuple(_plain(size) for size in node.meta["val"].shape)
    raise ModuleError(f"torch.export dropped the input {name!r}: forward does not use it")


def _plain(size: Any) -> Any:
    """The number of a size that torch keeps as a symbolic one, though it found it constant."""
    if isinstance(size, int) or not size.node.expr.is_number:
        return size
    return int(size.node.expr)


def _range(program: torch.export.ExportedProgram, size: Any) -> tuple[float, float]:
    found = program.range_constraints.get(size.node.expr)
    return (0, float("inf")) if found is None else (_number(found.lower), _number(found.upper))


def _number(bound: Any) -> float:
    number = float(bound)  # torch's integer infinity refuses int() by an AttributeError
    return number if math.isinf(number) else int(number)


def _summary(error: BaseException) -> str:
    """The sentence of torch's message, and the module's own line, without its advice."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).strip() or type(cause).__name__
    first = re.sub(r"\x1b\[[0-9;]*m", "", text.splitlines()[0])
    line = re.search(r'File "([^"]+)", line (\d+), in forward', str(error))
    return f"{first} (at {line[1]}:{line[2]})" if line else first


def _violation(error: BaseException) -> str:
    """The constraint that torch names, in the lines after its first."""
    named = re.search(r"^ +- (.*?)\.?$", str(error), re.MULTILINE)
    return named[1] if named else _summary(error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The libraries' own notices (absent torchvision, renamed symbols) are not the user's.

    torch logs the traceback of what it then raises; the sentence made of that is enough. What is
    asked for by TORCH_LOGS has a level of its own, and is still shown.
    """
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
