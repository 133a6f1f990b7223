"""Chunks of long causal attentions in ONNX Runtime on the CPU, against torch's SDPA.

The method of `benchmarks.zoo.latency`: threads that wait sleep, all take turns in an order that is
shuffled in each round, and SDPA is entered twice (the A/A test). Peaks of memory are measured in
processes of their own, see `peak`.

    python -m benchmarks.lowering.chunks [N ...]        all sizes: about five minutes
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from benchmarks.lowering.peak import peak_bytes
from benchmarks.lowering.report import write_report
from torch import Tensor, nn

from attnport.axes import Axis
from attnport.engines.lowered_graph import serialized
from attnport.engines.lowering_table import causal_chunks
from attnport.engines.ort_session import create_session
from attnport.export.chunk_causal import chunk_causal
from attnport.export.export_module import export_module
from attnport.export.onnx_file import load_onnx
from attnport.export.passes import inspect_graph
from attnport.validate.latency_stats import ratio_of_medians
from attnport.validate.latency_turns import Run, take_turns, warm_up

WIDTH, HEADS, THREADS, ROUNDS = 512, 8, 2, 15
SIZES = (128, 256, 512, 1024, 2048, 4096)
CHUNKS = (1, 4, 8, 16)
HERE = Path(__file__).parent
LOAD_BEFORE = os.getloadavg()


class Causal(nn.Module):
    """Causal self-attention by SDPA, with one matrix for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (part.view(b, n, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.o(y.transpose(1, 2).reshape(b, n, d))
        return output


def main(sizes: list[int]) -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    module = Causal().eval()
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_module(
            module, (torch.randn(1, 16, WIDTH),), Path(folder) / "bundle",
            dynamic_shapes=({0: "batch", 1: "seq"},),
            axes=[Axis("batch", 1, 1, 2), Axis("seq", 1, 128, 8192)], max_cases=1,
            case_sizes={"seq": 16},
        )  # fmt: skip
        graphs = {c: bundle.path / f"chunks{c}.onnx" for c in CHUNKS}
        for c, graph in graphs.items():
            graph.write_bytes(_chunked(bundle.model_path, bundle.axes, c))
        rows = [_measure(module, graphs, n) for n in sizes]
    _write(rows)


def _chunked(path: Path, axes: dict[str, Axis], chunks: int) -> bytes:
    model = load_onnx(path)
    if chunks > 1:
        infos = {info.name: info for info in inspect_graph(model.graph, axes).attentions}
        record = chunk_causal(model.graph, dict.fromkeys(infos, chunks), infos)
        assert record.changed == 1
    return serialized(model)


def _measure(module: nn.Module, graphs: dict[int, Path], n: int) -> dict:  # type: ignore[type-arg]
    ratios = _ratios(module, graphs, n)
    peaks, arenas = (
        {str(c): peak_bytes(graph, n, WIDTH, arena=arena) for c, graph in graphs.items()}
        for arena in (False, True)
    )
    print(n, ratios, {c: f"{peak / 2**20:.0f} MiB" for c, peak in peaks.items()}, flush=True)
    return {
        "n": n,
        "chosen": causal_chunks(n),
        "ratios": ratios,
        "peak_bytes": peaks,
        "arena_peak_bytes": arenas,
    }


def _ratios(module: nn.Module, graphs: dict[int, Path], n: int) -> dict[str, list[float]]:
    x = np.random.default_rng(n).standard_normal((1, n, WIDTH)).astype(np.float32)
    tensor = torch.from_numpy(x)

    def sdpa() -> None:
        with torch.inference_mode():
            module(tensor)

    def ours(graph: Path) -> Run:
        session = create_session(graph, None, "CPUExecutionProvider", threads=THREADS)
        return lambda: session.run(None, {"x": x})

    runs: dict[str, Run] = {"sdpa": sdpa, "same": lambda: sdpa()}
    runs |= {str(c): ours(graph) for c, graph in graphs.items()}
    seconds = {name: warm_up(run) for name, run in runs.items()}
    samples = take_turns(runs, seconds, 1.0 * len(runs), ROUNDS, seed=n)
    ratios = {}
    for name in set(runs) - {"sdpa"}:
        found = ratio_of_medians(samples[name], samples["sdpa"])
        ratios[name] = [round(v, 3) for v in (found.value, found.low, found.high)]
    return ratios


def _write(rows: list[dict]) -> None:  # type: ignore[type-arg]
    setting = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {THREADS} threads",
        "load average before": f"{LOAD_BEFORE[0]:.1f}",
        "torch": torch.__version__,
        "onnxruntime": ort.__version__,
    }
    content = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": setting,
        "width": WIDTH,
        "heads": HEADS,
        "chunks": CHUNKS,
        "rows": rows,
    }
    write_report(HERE / "results.json", content)


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or list(SIZES))
