"""The graph that ONNX Runtime loads in place of `model.onnx`, left as `model.<kind>.onnx`.

It is for people to look at: an engine lowers the graph again when it is opened.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from attnport.engines.lowered_graph import LoweredGraph
from attnport.engines.plan import PlanLowering
from attnport.errors import BuildError
from attnport.export.bundle import Bundle


def save_lowered(
    lowered: LoweredGraph, bundle: Bundle, kind: str, out: Path
) -> tuple[Path, PlanLowering]:
    """Writes the graph, if it is another than `model.onnx`.

    Args:
        lowered: What the engine loads.
        bundle: Whose weights the graph refers to.
        kind: The kind of engine.
        out: The folder to write to.

    Returns:
        The file that the engine loads, and what is to be said of it.

    Raises:
        BuildError: If it cannot be written.
    """
    forms = sorted({one.form for one in lowered.attentions})
    reasons = dict.fromkeys(one.reason for one in lowered.attentions)
    said = PlanLowering(
        form=", ".join(forms) or "as-written",
        reason="; ".join(reasons),
        attentions={
            one.attention: one.reason for one in lowered.attentions if one.form != "pattern"
        },
    )
    file = out / f"model.{kind}.onnx"
    try:
        if lowered.content is None:
            file.unlink(missing_ok=True)
            return bundle.model_path, said
        out.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_bytes(lowered.content)
        beside.replace(file)
    except OSError as err:
        raise BuildError(
            f"the graph cannot be put at {file} ({err}): name another folder"
        ) from err
    digest = hashlib.sha256(lowered.content).hexdigest()
    return file, said.model_copy(update={"graph": file.name, "graph_sha256": digest})
