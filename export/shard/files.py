"""Names of files and folders of a bundle that was split. Imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path

SHARD, RANK, REFERENCE = "shard.json", "rank.json", "reference"
TENSORRT_MODEL, TOGETHER = "model.tensorrt.onnx", "together"


def ranks_of(model: Path) -> int | None:
    """Over how many ranks the graph of a file is split; None where it is a whole one."""
    record = model.parent / RANK
    return int(json.loads(record.read_text("utf-8"))["ranks"]) if record.is_file() else None
