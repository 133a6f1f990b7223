"""What an engine adds to onnxruntime's own `run` of the same session, on an Identity model."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from attnport.engines.kinds import KINDS
from attnport.engines.ort_engine import OrtEngine
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.records import Manifest, TensorSpec

# Blocks of about a millisecond, shorter than the time a busy machine gives to somebody else.
_ROUNDS, _CALLS = 1500, 50


def measure_overhead(folder: Path) -> dict[str, object]:
    """Blocks of calls, by turns: engine, session, engine entered a second time (the A/A test)."""
    bundle = _identity_bundle(folder)
    engine = OrtEngine(bundle, KINDS["ort-cpu"], threads=1)
    session, feeds = engine._session, {"x": np.ones((1, 8, 16), np.float32)}
    runs = {
        "engine": lambda: engine.run(feeds),
        "session": lambda: session.run(["y"], feeds),
        "session again": lambda: session.run(["y"], feeds),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    draws = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        draws.shuffle(order)
        for name in order:
            run = runs[name]
            start = time.perf_counter()
            for _ in range(_CALLS):
                run()
            times[name].append(1e6 * (time.perf_counter() - start) / _CALLS)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "engine_us": medians["engine"],
        "session_us": medians["session"],
        "added_us": medians["engine"] - medians["session"],
        "session_against_itself_us": medians["session again"] - medians["session"],
        "added_us_best_blocks": min(times["engine"]) - min(times["session"]),
    }


def _identity_bundle(folder: Path) -> Bundle:
    folder.mkdir(parents=True)
    specs = tuple(
        TensorSpec(name=name, dtype="float32", shape=("batch", "seq", 16)) for name in "xy"
    )
    x, y = (
        helper.make_tensor_value_info(spec.name, TensorProto.FLOAT, spec.shape) for spec in specs
    )
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / MODEL)
    digest = file_sha256(folder / MODEL)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="identity",
        source="",
        dtype="float32",
        form="pattern",
        opset=18,
        axes={"batch": (1, 1, 8), "seq": (1, 8, 64)},
        inputs=specs[:1],
        outputs=specs[1:],
        graph_sha256=digest,
        weights_sha256="",
        files={MODEL: digest},
        versions={},
        passes=(),
        attentions=(),
        projection_groups=(),
        cases=(),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    return Bundle.load(folder)
