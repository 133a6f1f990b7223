"""Measures what splitting over ranks gives, and writes results.json and results.md beside this file.

    python -m benchmarks.shard.run            needs no GPU; ranks are processes on this machine

Measured: bytes of weights, bytes over the loopback interface, time with one thread for each rank.
Arithmetic, and said so: bytes sent per token, time on N devices.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from benchmarks.engines.stack import write_stack
from benchmarks.shard.arithmetic import DEVICES, expected_seconds, sent_bytes_per_token
from benchmarks.shard.markdown import markdown

from attnport.engines.engine import Engine
from attnport.engines.open import open_engine
from attnport.engines.sharded.sharded_engine import ShardedEngine
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.export.shard.records import ShardManifest
from attnport.export.shard.shard_bundle import shard_bundle
from attnport.export.shard.sharded import ShardedBundle
from attnport.models.registry import resolve
from attnport.validate.machine import this_machine

_HERE = Path(__file__).parent
_RUNS = 9
_TOKENS = (1, 1024)

MODELS: dict[str, dict[str, object]] = {
    "encoder-block": {"d_model": 512, "num_heads": 8},
    "decoder-lm": {"d_model": 512, "num_heads": 8, "num_layers": 2, "kv_heads": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, action="append", default=[])
    parser.add_argument("--folder", type=Path, help="where to work; the system's by default")
    asked = parser.parse_args()
    rows = []
    for name, sizes in MODELS.items():
        for dtype in ("float32", "float16"):
            with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
                rows += _measure(name, sizes, dtype, asked.ranks or [2, 4], Path(folder))
    for count in asked.ranks or [2, 4, 8]:
        rows.append(_of_wide_stack(count, asked.folder))
    results = {
        "machine": this_machine().model_dump(),
        "load_before": os.getloadavg()[0],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": rows,
    }
    (_HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    (_HERE / "results.md").write_text(markdown(results), "utf-8")


def _measure(
    name: str, sizes: Mapping[str, object], dtype: str, ranks: list[int], folder: Path
) -> list[dict[str, object]]:
    bundle = _export(name, sizes, dtype, folder / "whole")
    feeds = _feeds(bundle)
    with open_engine(bundle, "ort-cpu", threads=1) as engine:
        whole_ms = _milliseconds(engine, feeds)
    rows = []
    for count in ranks:
        print(f"{name} {dtype} on {count} …", flush=True)
        manifest = shard_bundle(bundle, count, folder / f"on{count}")
        sharded = ShardedBundle.load(folder / f"on{count}")
        row = _of_manifest(manifest)
        with ShardedEngine(sharded, threads=1) as engine:
            row["ms"] = _milliseconds(engine, feeds)
            row["loopback_bytes_per_token"] = _loopback(engine, feeds)
        row |= {"model": name, "dtype": dtype, "sizes": dict(sizes), "whole_ms": whole_ms}
        row["tokens"] = _token_count(feeds)
        rows.append(row)
    return rows


def _of_wide_stack(ranks: int, where: Path | None) -> dict[str, object]:
    """Two attention layers of D=4096 H=32: their weights are split here, and nothing is run."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        bundle = write_stack(Path(folder) / "whole", 2)
        row = _of_manifest(shard_bundle(bundle, ranks, Path(folder) / "split"))
    return row | {"model": "2 attentions 4096/32", "dtype": "float16"}


def _export(name: str, sizes: Mapping[str, object], dtype: str, out: Path) -> Bundle:
    spec = resolve(name, sizes)
    return export_module(
        spec.make(),
        spec.make_args(spec.opt_sizes()),
        out,
        dynamic_shapes=spec.dynamic_shapes,
        axes=spec.axes,
        dtype=dtype,
        inputs=spec.roles,
        name=name,
        source=spec.source,
        max_cases=4,
    )


def _feeds(bundle: Bundle) -> dict[str, np.ndarray]:
    """The inputs of the case with the most tokens."""
    cases = [bundle.load_case(record.name) for record in bundle.manifest.cases]
    return dict(max((case.inputs for case in cases), key=_token_count))


def _token_count(feeds: Mapping[str, np.ndarray]) -> int:
    first = next(iter(feeds.values()))
    return first.shape[0] * first.shape[1]


def _of_manifest(manifest: ShardManifest) -> dict[str, object]:
    expected = {
        f"{device.name}, {tokens} tokens": expected_seconds(manifest, tokens, device)
        for device in DEVICES
        for tokens in _TOKENS
    }
    return {
        "ranks": len(manifest.ranks),
        "weights_bytes": manifest.weights.total,
        "split_bytes": manifest.weights.split,
        "held_bytes": max(one.weights.total for one in manifest.ranks),
        "repeated_bytes": max(one.weights.repeated for one in manifest.ranks),
        "sums": len(manifest.reductions),
        "sent_bytes_per_token": sent_bytes_per_token(manifest),
        "expected_seconds": expected,
    }


def _milliseconds(engine: Engine, feeds: Mapping[str, np.ndarray]) -> float:
    engine.run(feeds)
    taken = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        engine.run(feeds)
        taken.append(1e3 * (time.perf_counter() - start))
    return median(taken)


def _loopback(engine: Engine, feeds: Mapping[str, np.ndarray]) -> float:
    """Bytes that crossed the loopback interface for each token, of all ranks, headers included."""
    before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    for _ in range(_RUNS):
        engine.run(feeds)
    crossed = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
    return crossed / _RUNS / _token_count(feeds)


if __name__ == "__main__":
    main()
