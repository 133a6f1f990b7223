"""ONNX Runtime's latency of our graph against those of torch.onnx's own exports.

The traps of such a comparison are avoided as `attnport.validate.latency_turns` does it: waiting
threads sleep, sessions take turns in an order that is shuffled in each round, and ours is entered
twice (the A/A test), which tells what the method cannot tell from no difference.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.stock import OPSETS, export_stock

from attnport.export.bundle import Bundle
from attnport.validate.latency_stats import ratio_of_medians
from attnport.validate.latency_turns import Run, take_turns, warm_up

SECONDS, ROUNDS, THREADS = 4.0, 40, 2
Feeds = dict[str, np.ndarray]


def latency_ratios(
    entry: Architecture, module: torch.nn.Module, bundle: Bundle, folder: Path
) -> dict[str, tuple[float, float, float]]:
    """The ratio of medians, ours over each stock export's, with its 95% interval.

    Args:
        entry: The architecture.
        module: Its module.
        bundle: Our export, in float32.
        folder: For the stock exports; it is made.

    Returns:
        By opset, and "same" for ours over ours. A stock export that cannot be made or run is absent.
    """
    folder.mkdir()
    feeds = {
        spec.name: arg.numpy()
        for spec, arg in zip(bundle.manifest.inputs, entry.example(), strict=True)
    }
    runs = {"ours": _session(bundle.model_path, feeds), "same": _session(bundle.model_path, feeds)}
    for opset in OPSETS:
        path = folder / f"stock{opset}.onnx"
        try:
            export_stock(entry, module, "float32", opset, path)
            run = _session(path, feeds)
            run()
        except Exception:  # ONNX Runtime's errors have no common base; the absence is shown
            continue
        runs[str(opset)] = run
    seconds = {name: warm_up(run) for name, run in runs.items()}
    samples = take_turns(runs, seconds, SECONDS * len(runs), ROUNDS, seed=0)
    found = {}
    for name in set(runs) - {"ours"}:
        ratio = ratio_of_medians(samples["ours"], samples[name])
        found[name] = (round(ratio.value, 4), round(ratio.low, 4), round(ratio.high, 4))
    return found


def _session(path: Path, feeds: Feeds) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)
