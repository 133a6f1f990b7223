"""The peer that does nothing of ours: torch.onnx.export as it comes, in the same runtime.

What attnport's passes are worth is the difference to this, and not to PyTorch alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.kinds import engine_kind
from attnport.errors import EngineUnavailableError
from attnport.export.bundle import MODEL, Bundle

if TYPE_CHECKING:
    import torch

STOCK = "ort-cpu-stock"


def open_stock(
    bundle: Bundle,
    module: torch.nn.Module,
    feeds: Mapping[str, np.ndarray],
    folder: Path,
    *,
    threads: int | None,
) -> Engine:
    """Exports the module by torch.onnx alone and opens what comes of it in ONNX Runtime.

    Args:
        bundle: For the names, dtypes and axes of the inputs.
        module: The module.
        feeds: Example inputs.
        folder: Where the file goes.
        threads: Worker threads.

    Raises:
        EngineUnavailableError: If torch.onnx cannot export it by itself.
    """
    import onnx

    from attnport.engines.ort_engine import OrtEngine

    file = folder / MODEL
    try:
        _export(bundle, module, feeds, file)
    except Exception as err:  # whatever torch.onnx raises
        first = (str(err).splitlines() or [type(err).__name__])[0]
        raise EngineUnavailableError(f"torch.onnx cannot export it by itself: {first}") from err
    names = [output.name for output in onnx.load(file, load_external_data=False).graph.output]
    outputs = tuple(
        spec.model_copy(update={"name": name})
        for spec, name in zip(bundle.manifest.outputs, names, strict=True)
    )
    manifest = bundle.manifest.model_copy(update={"outputs": outputs})
    stock = replace(bundle, path=folder, manifest=manifest)
    engine = OrtEngine(stock, engine_kind("ort-cpu"), threads=threads)
    engine.kind = STOCK
    return engine


def _export(
    bundle: Bundle, module: torch.nn.Module, feeds: Mapping[str, np.ndarray], file: Path
) -> None:
    import torch

    from attnport.export.module_forms import module_in_dtype, slow_path, to_torch

    specs = bundle.manifest.inputs
    dims = {
        spec.name: {
            at: torch.export.Dim.DYNAMIC if feeds[spec.name].shape[at] > 1 else None
            for at, dim in enumerate(spec.shape)
            if isinstance(dim, str)
        }
        for spec in specs
    }
    with torch.no_grad(), slow_path(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, which say nothing of the result
        torch.onnx.export(
            module_in_dtype(module, bundle.dtype),
            (),
            file,
            kwargs={spec.name: to_torch(feeds[spec.name]) for spec in specs},
            dynamic_shapes=dims,
            dynamo=True,
            verbose=False,
        )
