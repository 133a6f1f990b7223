"""ONNX files: read with a sentence where they cannot be, inspected, written with their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from attnport.axes import Axis
from attnport.errors import GraphError, InternalError
from attnport.export.passes import inspect_graph, write_plainly
from attnport.export.records import Inspection

# Weights above this go to a file of their own, which can be mapped and is not parsed.
EXTERNAL_BYTES = 1 << 20


def load_onnx(path: str | Path) -> ir.Model:
    """Reads an ONNX file; the weights stay on disk until they are used.

    Raises:
        GraphError: If the file, or one that holds its weights, is missing, truncated or not ONNX.
    """
    file = Path(path)
    if not file.is_file():
        raise GraphError(f"there is no file {file}: give the path of an .onnx file")
    try:
        model = ir.load(file)
    except Exception as err:  # protobuf's error is not a public type
        raise GraphError(
            f"{file} is not an ONNX file, or was cut short ({type(err).__name__}): copy it again, "
            "with the .data file that belongs to it"
        ) from err
    if len(model.graph) == 0:
        raise GraphError(f"{file} holds no node: it is not an ONNX model, or was cut short")
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                _require_whole(file, value.const_value)
    return model


def _require_whole(file: Path, tensor: ir.ExternalTensor) -> None:
    data = Path(tensor.path)
    if not data.is_file():
        raise GraphError(
            f"{file} keeps its weights in {tensor.location}, which is not beside it: copy it too"
        )
    if data.stat().st_size < (tensor.offset or 0) + (tensor.length or 0):
        raise GraphError(
            f"{data} ends before the weight {tensor.name}: it was cut short, so copy it again"
        )


def inspect_model(path: str | Path, axes: Mapping[str, Axis] | None = None) -> Inspection:
    """Every attention and projection group of an ONNX file, which is not changed.

    Raises:
        GraphError: If the file cannot be read.
    """
    model = load_onnx(path)
    common.InlinePass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    write_plainly(model, axes or {}, "attention")
    return inspect_graph(model.graph, axes)


def save_onnx(model: ir.Model, path: Path) -> None:
    """Writes a model, weights above 1 MiB beside it, and checks the file.

    Raises:
        InternalError: If what was written is not a valid model.
    """
    ir.save(model, path, external_data=f"{path.name}.data", size_threshold_bytes=EXTERNAL_BYTES)
    beside = path.with_name(f"{path.name}.data")
    if beside.stat().st_size == 0:
        beside.unlink()
    fault = onnx_fault(path)
    if fault is not None:
        raise InternalError(
            f"the passes wrote a graph that onnx refuses ({fault}): please report the module"
        ) from fault


def onnx_fault(path: Path) -> Exception | None:
    """Why onnx's checker refuses a file; None if it does not."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as err:  # the checker's error is not a public type
        return err
    return None
