"""The peak memory of one run of a graph in ONNX Runtime, measured in a process of its own.

Twice: with the session's arena, as the engine runs it, which keeps blocks of doubling size; and
without, every tensor taken from the system and given back, which is what the graph itself needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

_CHILD = "--child"
# Of the system's allocator: from this size on a tensor is given back as soon as it is freed. It
# would grow by itself otherwise, and freed blocks of other sizes would stay.
_GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "1000000"}


def peak_bytes(graph: Path, tokens: int, width: int, *, arena: bool) -> int:
    """What a run adds to the resident memory at its highest, over a session that has run before.

    Args:
        graph: Takes x (1,N,D).
        tokens: N.
        width: D.
        arena: Whether the session keeps an arena.
    """
    command = [sys.executable, "-m", __spec__.name, _CHILD]
    asked = {"graph": str(graph), "tokens": tokens, "width": width, "arena": arena}
    environment = os.environ | ({} if arena else _GIVEN_BACK)
    done = subprocess.run(
        [*command, json.dumps(asked)], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def _measure(graph: str, tokens: int, width: int, arena: bool) -> int:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((1, tokens, width)).astype(np.float32)
    session.run(None, {"x": x[:, :64]})
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = _peak()
    session.run(None, {"x": x})
    return _peak() - before


def _peak() -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM: measure on Linux")


if __name__ == "__main__":
    print(_measure(**json.loads(sys.argv[2])))
