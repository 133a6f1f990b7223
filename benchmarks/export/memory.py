"""`make bench-export`: peak memory and time of an export, without reference cases.

Each export runs in a process of its own, whose memory is sampled every 10 ms: what it holds beyond
the module itself, over the size of the weights. Pages of mapped files are not counted, since the
system takes them back when it needs them. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from attnport.validate.machine import this_machine

HERE = Path(__file__).parent
# Width, heads, layers.
STACKS = ((512, 8, 2), (1024, 16, 32), (4096, 32, 8))
_MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.export.memory", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument(
        "--largest-mib", type=int, default=2048, help="of weights; more is left out"
    )
    asked = parser.parse_args()
    rows = []
    for width, heads, layers in STACKS:
        weights = 2 * layers * (4 * width * width + 2 * width)
        if weights > asked.largest_mib * _MIB:
            print(f"{width}/{heads}/{layers}: left out, {weights // _MIB} MiB of weights")
            continue
        rows.append(_measured(width, heads, layers, weights))
        print(json.dumps(rows[-1]), flush=True)
    written = {"machine": this_machine().model_dump(mode="json"), "exports": rows}
    (asked.out / "results.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    (asked.out / "results.md").write_text(_markdown(written), "utf-8")
    return 0


def _measured(width: int, heads: int, layers: int, weights: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_export, args=(width, heads, layers, sending))
    child.start()
    sending.close()
    try:
        found: dict[str, float] = receiving.recv()
    except EOFError:
        raise SystemExit(f"the export of {width}/{heads}/{layers} died") from None
    child.join()
    return {
        "width": width, "heads": heads, "layers": layers, "weight_mib": weights / _MIB,
        "peak_over_weights": found["peak"] / weights, **found,
    }  # fmt: skip


def _export(width: int, heads: int, layers: int, results: object) -> None:
    import torch

    from attnport.export.export_module import export_module
    from attnport.models.blocks import AttentionStack

    torch.set_default_dtype(torch.float16)
    module = AttentionStack(width, heads, layers)
    torch.set_default_dtype(torch.float32)
    start, steps = time.perf_counter(), _Steps()
    with tempfile.TemporaryDirectory() as folder, _Sampled() as sampled:
        export_module(
            module, (torch.zeros(2, 4, width, dtype=torch.float16),), Path(folder) / "bundle",
            dynamic_shapes=({0: "batch", 1: "seq"},),
            axes={"batch": (1, 2, 4), "seq": (1, 16, 32)}, max_cases=0,
            progress=steps.tell,
        )  # fmt: skip
    results.send(  # type: ignore[attr-defined]
        {"peak": sampled.peak, "seconds": time.perf_counter() - start, "steps": steps.seconds()}
    )


class _Steps:
    """How long each step took, by the names that the export tells."""

    def __init__(self) -> None:
        self._told: list[tuple[str, float]] = []

    def tell(self, step: str, fraction: float) -> None:
        self._told.append((step, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        ends = [when for _, when in self._told[1:]]
        return {
            step: round(end - start, 2)
            for (step, start), end in zip(self._told, ends, strict=False)
        }


class _Sampled:
    """The most bytes, in this process and beyond those at the start, that no file stands for."""

    def __enter__(self) -> _Sampled:
        self.peak, self._start, self._done = 0, _anonymous_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.01):
            self.peak = max(self.peak, _anonymous_bytes() - self._start)


def _anonymous_bytes() -> int:
    for line in Path(f"/proc/{os.getpid()}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell a process' anonymous memory (/proc is needed)")


def _markdown(written: dict[str, object]) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in written["machine"].items())  # type: ignore[attr-defined]
    lines = [
        "# Memory and time of an export", "",
        f"Written by `make bench-export` on {machine}. Pre-LN attention blocks, float16, without "
        "reference cases; peak: what the process holds beyond the module itself.", "",
        "| width, heads, layers | weights, MiB | peak, MiB | peak over weights | seconds |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in written["exports"]:  # type: ignore[attr-defined]
        lines.append(
            f"| {row['width']}, {row['heads']}, {row['layers']} | {row['weight_mib']:.0f} | "
            f"{row['peak'] / _MIB:.0f} | {row['peak_over_weights']:.2f} | {row['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
