"""What ONNX Runtime really ran, read from a profile of one run.

Its optimizer rewrites graphs, so the nodes of a file prove nothing about a run; the profile names
every kernel with its operator and its provider.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attnport.engines.kinds import EngineKind
from attnport.engines.lowered_graph import LoweredAttention, LoweredGraph
from attnport.engines.ort_session import DISABLED_OPTIMIZERS, create_session, load_cuda_libraries
from attnport.export.bundle import Bundle
from attnport.export.records import Record

_KERNEL = "_kernel_time"


class RanNode(Record):
    """A kernel that ran: its node, operator and provider."""

    node: str
    operator: str
    provider: str


class RanAttention(Record):
    """What ran for one attention.

    Attributes:
        attention: Its name.
        fused: Whether one node of the provider asked for computed it.
        ran: The kernels that bear its name.
        reason: Why it is not one node; empty where it is.
    """

    attention: str
    fused: bool
    ran: tuple[RanNode, ...]
    reason: str = ""


def attentions_that_ran(
    bundle: Bundle, kind: EngineKind, lowered: LoweredGraph, feeds: Mapping[str, np.ndarray]
) -> tuple[RanAttention, ...]:
    """Runs the graph once, profiled, and says of each attention what computed it.

    Which of its kernels (flash, memory-efficient, unfused) the provider chose inside that node
    is not in the profile; ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO=1 makes onnxruntime print it.

    Args:
        bundle: The bundle.
        kind: The kind, whose provider must have run it.
        lowered: The graph that the engine runs.
        feeds: Inputs for one run.
    """
    nodes = profile_nodes(bundle, kind, lowered, feeds)
    return tuple(_judge(one, nodes, kind) for one in lowered.attentions)


def profile_nodes(
    bundle: Bundle, kind: EngineKind, lowered: LoweredGraph, feeds: Mapping[str, np.ndarray]
) -> list[RanNode]:
    """Every kernel of one run, in order."""
    load_cuda_libraries(kind.provider)
    with tempfile.TemporaryDirectory(prefix="attnport-") as folder:
        session = create_session(
            lowered.content or bundle.model_path,
            bundle.path,
            kind.provider,
            DISABLED_OPTIMIZERS,
            profile_prefix=str(Path(folder) / "run"),
        )
        session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return [
        RanNode(
            node=event["name"].removesuffix(_KERNEL),
            operator=event["args"]["op_name"],
            provider=event["args"]["provider"],
        )
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)
    ]


def _judge(one: LoweredAttention, nodes: list[RanNode], kind: EngineKind) -> RanAttention:
    own = tuple(node for node in nodes if node.node.startswith(f"/{one.attention}/"))
    whole = [node for node in own if one.node and node.node == one.node]
    if not one.node:
        reason = f"it was given as a pattern: {one.reason}"
    elif not whole:
        reason = f"onnxruntime ran no node of the name {one.node}"
    elif whole[0].provider != kind.provider:
        reason = f"{one.node} ran on {whole[0].provider}"
    else:
        reason = ""
    return RanAttention(attention=one.attention, fused=not reason, ran=own, reason=reason)
