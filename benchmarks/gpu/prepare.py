"""What a machine without exporter, and even without attnport's libraries, needs for the road.

    python -m benchmarks.gpu.prepare [--out build/gpu/prepared]

Run it where attnport is installed; it needs no GPU. It leaves bundles, the graphs in each form that
ONNX Runtime may get, cases as .npz, and plans of TensorRT for RTX.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.kinds import can_build
from attnport.engines.lowering import lower_bundle
from attnport.export.bundle import Bundle
from attnport.models.sources import spec_from_source
from attnport.pipeline_run import bundle_from_spec
from attnport.validate.bound import bound

MODELS = ("multi-head-512-8", "causal-multi-head-512-8", "multi-head-masked-512-8")
PLANS = {"default": BuildOptions(), "80-86-89-120": BuildOptions(targets=(80, 86, 89, 120))}
RTX = "tensorrt-rtx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu/prepared"))
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    for model in MODELS:
        bundle = bundle_from_spec(
            spec_from_source(model), out / model, dtype="float16", max_cases=6
        )
        _write_graphs(bundle)
        if can_build(RTX):
            for name, options in PLANS.items():
                build_engine(bundle, RTX, out=out / model / f"plan-{name}", options=options)
        print(f"{out / model}")


def _write_graphs(bundle: Bundle) -> None:
    lowered = lower_bundle(bundle, "ort-cuda")
    if lowered.content is not None:
        # Beside model.onnx, whose file of weights it shares.
        (bundle.path / "lowered.onnx").write_bytes(lowered.content)
    for record in bundle.manifest.cases:
        case = bundle.load_case(record.name)
        arrays = {f"input.{name}": array for name, array in case.inputs.items()}
        arrays |= {f"reference.{name}": array for name, array in case.references.items()}
        for name, reference in record.references.items():
            arrays[f"bound.{name}"] = np.asarray(bound(reference, bundle.dtype).max)
        np.savez(bundle.path / f"{record.name}.npz", **arrays)  # type: ignore[arg-type]  # keywords are arrays here


if __name__ == "__main__":
    main()
