"""What a bisection found: the first node that goes wrong, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.export.bundle import Case
from attnport.validate.graph_taps import Tap, origin_of

if TYPE_CHECKING:
    from attnport.validate.module_trace import Made


@dataclass(frozen=True)
class Bisection:
    """What was found.

    Attributes:
        case: The case that was looked at.
        side: "graph" where the graph is not the module, "engine" where the engine is not the
            graph, "" where nothing leaves its bound.
        node: The first node that does.
        operator: Its operator.
        tensor: What it makes.
        path: The submodule that it comes from, as the exporter or the module tells.
        line: The line of the module's code.
        after: The last tensor before it that was right.
        message: All of it in a sentence.
    """

    case: str
    side: str
    node: str = ""
    operator: str = ""
    tensor: str = ""
    path: str = ""
    line: str = ""
    after: str = ""
    message: str = ""


def bisection_of(
    tap: Tap, side: str, case: Case, after: str, near: Made | None, what: str
) -> Bisection:
    path, line = origin_of(tap.node)
    if not line and near is not None:
        path, line = near.path, near.line
    where = f"{path or 'the module itself'}" + (f", {line}" if line else "")
    name = tap.node.name or tap.name
    return Bisection(
        case=case.record.name,
        side=side,
        node=name,
        operator=tap.node.op_type,
        tensor=tap.name,
        path=path,
        line=line,
        after=after,
        message=f"{case.record.name}: {tap.name} of {tap.node.op_type} {name} {what}"
        + (f"; {after} before it is right" if after else "")
        + f" (from {where})",
    )
