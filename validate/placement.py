"""Placement: whether the provider that an engine is named after runs it, or was replaced."""

from __future__ import annotations

from attnport.engines.engine import Engine
from attnport.engines.kinds import KINDS
from attnport.validate.finding import Finding, Status, Subject


def check_placement(engine: Engine, subject: Subject, *, required: bool) -> Finding | None:
    """Says where the nodes run; None for kinds that have one device and no providers.

    A few nodes elsewhere are usual (ONNX Runtime computes shapes on the CPU); none at all where
    they belong means that ONNX Runtime fell back without a word.

    Args:
        engine: An opened engine that has run once.
        subject: The engine, as Findings name it.
        required: Whether parity is required of the engine.
    """
    kind = KINDS.get(engine.kind)  # an endpoint, or several ranks, are none of these
    provider = kind.provider if kind is not None else ""
    if not provider:
        return None
    nodes = engine.placement()
    shown = ", ".join(f"{count} on {name}" for name, count in nodes.items()) or "none"
    status: Status = "passed" if nodes.get(provider) else "failed"
    message = f"nodes: {shown}"
    if status == "failed":
        message = f"{provider} was replaced, it runs no node: {shown}"
    return subject.finding(
        "engine", "placement", status, message, required=required, numbers=dict(nodes)
    )
