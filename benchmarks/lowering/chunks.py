"""Chunks of long causal attentions in ONNX Runtime on the CPU, against torch's SDPA.

The method of `benchmarks.zoo.latency`: threads that wait sleep, all take turns in an order that is
shuffled in each round, and SDPA is entered twice (the A/A test). The bytes of scores are counted
from shapes, not measured: the largest (B,H,rows,T) that exists at one time.

    python -m benchmarks.lowering.chunks [N ...]
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor, nn

from attnport.axes import Axis
from attnport.engines.lowering_table import causal_chunks
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


class Causal(nn.Module):
    """Causal self-attention by SDPA, with one matrix for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        heads = (part.view(b, n, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
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
        sessions = {c: _session(_chunked(bundle.model_path, bundle.axes, c), bundle.path)
                    for c in CHUNKS}  # fmt: skip
        rows = [_measure(module, sessions, n) for n in sizes]
    _write(rows)


def _chunked(path: Path, axes: dict[str, Axis], chunks: int) -> bytes:
    model = load_onnx(path)
    if chunks > 1:
        infos = {info.name: info for info in inspect_graph(model.graph, axes).attentions}
        record = chunk_causal(model.graph, dict.fromkeys(infos, chunks), infos)
        assert record.changed == 1
    return bytes(ir.to_proto(model).SerializeToString())


def _session(content: bytes, folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _measure(module: nn.Module, sessions: dict[int, ort.InferenceSession], n: int) -> dict:  # type: ignore[type-arg]
    x = np.random.default_rng(n).standard_normal((1, n, WIDTH)).astype(np.float32)
    tensor = torch.from_numpy(x)

    def sdpa() -> None:
        with torch.inference_mode():
            module(tensor)

    def ours(session: ort.InferenceSession) -> Run:
        return lambda: session.run(None, {"x": x})

    runs: dict[str, Run] = {"sdpa": sdpa, "same": lambda: sdpa()}
    runs |= {str(c): ours(session) for c, session in sessions.items()}
    seconds = {name: warm_up(run) for name, run in runs.items()}
    samples = take_turns(runs, seconds, 1.0 * len(runs), ROUNDS, seed=n)
    ratios = {}
    for name in set(runs) - {"sdpa"}:
        found = ratio_of_medians(samples[name], samples["sdpa"])
        ratios[name] = [round(v, 3) for v in (found.value, found.low, found.high)]
    bytes_of = {str(c): HEADS * -(-n // c) * n * 4 for c in CHUNKS}
    print(n, ratios, flush=True)
    return {"n": n, "ratios": ratios, "score_bytes": bytes_of, "chosen": causal_chunks(n)}


def _write(rows: list[dict]) -> None:  # type: ignore[type-arg]
    machine = {
        "machine": f"{platform.machine()}, {THREADS} threads",
        "load": [round(v, 1) for v in os.getloadavg()],
        "torch": torch.__version__,
        "onnxruntime": ort.__version__,
    }
    result = {"setting": machine, "width": WIDTH, "heads": HEADS, "rows": rows}
    (HERE / "results.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    lines = [
        "# Long causal attentions on the CPU, in chunks",
        "",
        f"One attention, batch 1, D={WIDTH} H={HEADS}, fp32; {machine}. Ratio of medians to torch "
        "SDPA with its 95% interval; A/A is SDPA against itself.",
        "",
        "| N | A/A | " + " | ".join("plain" if c == 1 else f"{c} chunks" for c in CHUNKS)
        + " | chosen | MiB of scores, plain and chosen (counted from shapes) |",
        "|---" * (len(CHUNKS) + 4) + "|",
    ]  # fmt: skip
    for row in rows:
        said = ["{} [{}, {}]".format(*row["ratios"][k]) for k in ("same", *map(str, CHUNKS))]
        mib = [row["score_bytes"][k] / 2**20 for k in ("1", str(row["chosen"]))]
        lines.append(
            f"| {row['n']} | " + " | ".join(said)
            + f" | {row['chosen']} | {mib[0]:.1f}, {mib[1]:.1f} |"
        )  # fmt: skip
    (HERE / "results.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or list(SIZES))
