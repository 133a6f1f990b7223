"""Writes what a latency measurement runs: our graph, torch.onnx's two, and the inputs.

A folder for each architecture, kept, so that a measurement on a quiet machine starts at once.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import torch
from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.catalogue import ARCHITECTURES
from benchmarks.zoo.latency_choice import STAMP, Choice, stamp
from benchmarks.zoo.setting import this_setting
from benchmarks.zoo.stock import OPSETS, StockError, export_stock

from attnport.engines.lower_for_cpu import lower_for_cpu
from attnport.engines.lowered_file import save_lowered
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module


def prepare(choice: Choice, folder: Path) -> None:
    """Exports in fp32 in all three ways; a stock export that cannot be made is absent.

    Args:
        choice: What to export.
        folder: What stood there is replaced.

    Raises:
        AttnportError: If our own export fails.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    (folder / STAMP).unlink(missing_ok=True)
    shutil.rmtree(folder / "ours", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    entry = ARCHITECTURES[choice.name]
    module = entry.make()
    bundle = export_module(
        module, entry.example(), folder / "ours", dynamic_shapes=entry.dynamic_shapes,
        axes=entry.axes, dtype="float32", inputs=entry.roles, name=entry.name, max_cases=1,
    )  # fmt: skip
    # As the engine ort-cpu runs it; both lie beside the weights.
    file, _ = save_lowered(lower_for_cpu(bundle), bundle, "ort-cpu", bundle.path)
    (folder / "ours.txt").write_text(str(file.relative_to(folder)), "utf-8")
    np.savez(folder / "feeds.npz", **_feeds(entry, bundle, choice))  # type: ignore[arg-type]
    for opset in OPSETS:
        _export_stock(entry, module, opset, folder / f"stock{opset}")
    (folder / STAMP).write_text(stamp(choice), "utf-8")


def _export_stock(entry: Architecture, module: torch.nn.Module, opset: int, home: Path) -> None:
    """Nothing of ours is in it, so it is kept as long as the libraries are the same."""
    stamp_file, versions = home / STAMP, json.dumps(this_setting(), sort_keys=True)
    if stamp_file.is_file() and stamp_file.read_text("utf-8") == versions:
        return
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    try:
        export_stock(entry, module, "float32", opset, home / "model.onnx")
    except StockError as err:
        (home / "refusal.txt").write_text(str(err), "utf-8")
    stamp_file.write_text(versions, "utf-8")


def _feeds(entry: Architecture, bundle: Bundle, choice: Choice) -> dict[str, np.ndarray]:
    """The example, its rows repeated or left out until the axes have the sizes asked for."""
    feeds = {}
    for spec, arg, shape in zip(
        bundle.manifest.inputs, entry.example(), entry.dynamic_shapes, strict=True
    ):
        array = arg.numpy()
        for dim, axis in (shape or {}).items():
            size = choice.sizes.get(axis, array.shape[dim])
            array = np.take(array, np.arange(size) % array.shape[dim], axis=dim)
        feeds[spec.name] = array
    return feeds
