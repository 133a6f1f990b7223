"""What torch.onnx alone makes of a module, built by the same TensorRT, to compare with."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from benchmarks.zoo.architecture import Architecture

from attnport.axes import axes_by_name
from attnport.engines.layer_table import parse_layer_tables
from attnport.engines.plan import PlanLayer
from attnport.engines.trt_request import REQUEST, RESULT, BuildRequest, BuildResult, ShapeRange
from attnport.export.dynamic_shapes import bind_example, torch_shapes
from attnport.export.module_forms import module_in_dtype, torch_dtype

OPSETS = (18, 23)


class StockError(Exception):
    """torch.onnx or TensorRT refuses."""


def export_stock(
    entry: Architecture, module: torch.nn.Module, dtype: str, opset: int, path: Path
) -> None:
    """Exports with torch.onnx and its optimizer, and nothing of ours.

    Raises:
        StockError: If torch cannot.
    """
    low = module_in_dtype(module, dtype)
    args = tuple(
        arg.to(torch_dtype(dtype)) if arg.is_floating_point() else arg for arg in entry.example()
    )
    axes = axes_by_name(entry.axes)
    example = bind_example(low, args, {}, entry.dynamic_shapes, axes)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                low,
                example.args,
                dynamo=True,
                opset_version=opset,
                verbose=False,
                dynamic_shapes=torch_shapes(example, axes),
            )
        assert program is not None
        program.save(path, external_data=True)
    except Exception as err:  # torch's exporter raises whatever it met
        raise StockError(f"export: {type(err).__name__}: {_first_line(err)}") from err


def build_layers(
    path: Path, profile: dict[str, ShapeRange], folder: Path
) -> tuple[PlanLayer, ...]:
    """Builds any ONNX file with TensorRT for RTX, as it is written.

    Args:
        path: The ONNX file.
        profile: The range of each input with a varying dimension.
        folder: An empty one; the plan is left there.

    Returns:
        The builder's table.

    Raises:
        StockError: If TensorRT refuses it, or dies.
    """
    request = BuildRequest(
        library="tensorrt_rtx", model_path=path.resolve(), profiles=(profile,) if profile else ()
    )
    (folder / REQUEST).write_text(request.model_dump_json(), "utf-8")
    command = [sys.executable, "-P", "-m", "attnport.engines.trt_child", str(folder / REQUEST)]
    quiet = subprocess.DEVNULL
    # Its stdin is a pipe that nobody closes: the child leaves when its stdin ends.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as child:
        code = child.wait()
    if code != 0:
        raise StockError(f"build: TensorRT died with {code}")
    result = BuildResult.model_validate_json((folder / RESULT).read_text("utf-8"))
    if result.failure is not None:
        raise StockError(f"{result.failure.stage}: {result.failure.message[:200]}")
    return parse_layer_tables(result.layer_tables)


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
