"""A rank's graph cut at its sums over the ranks, into graphs that ONNX Runtime takes.

Each segment refers to the rank's one file of weights, of which it reads what it uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import InternalError

if TYPE_CHECKING:
    import onnx

_DOMAIN = "attnport"


@dataclass(frozen=True)
class Segment:
    """What runs between two sums.

    Attributes:
        content: The serialized graph; b"" where nothing is computed.
        inputs: What it takes: inputs of the whole, results of earlier segments, and sums.
        outputs: What it gives.
        sums: What is summed over the ranks behind it: the name of the sum, and of what is summed.
    """

    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]


def cut_into_segments(path: Path) -> list[Segment]:
    """Reads a rank's graph and cuts it.

    A node stands in the first segment behind all sums that it depends on.

    Args:
        path: The rank's `model.onnx`.

    Raises:
        InternalError: If the type of a value at a cut is not known.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    levels: dict[str, int] = {}
    nodes: list[list[onnx.NodeProto]] = [[]]
    sums: list[list[tuple[str, str]]] = [[]]
    for node in model.graph.node:
        level = max((levels.get(name, 0) for name in _taken(node)), default=0)
        is_sum = node.domain == _DOMAIN
        levels.update(dict.fromkeys(node.output, level + is_sum))
        while len(nodes) <= level + is_sum:
            nodes.append([])
            sums.append([])
        if is_sum:
            sums[level].append((node.output[0], node.input[0]))
        else:
            nodes[level].append(node)
    return [_segment(model, nodes, sums, at) for at in range(len(nodes))]


def _segment(
    model: onnx.ModelProto,
    nodes: list[list[onnx.NodeProto]],
    sums: list[list[tuple[str, str]]],
    at: int,
) -> Segment:
    import onnx

    own = nodes[at]
    made = {name for node in own for name in node.output if name}
    constants = {constant.name: constant for constant in model.graph.initializer}
    taken = dict.fromkeys(name for node in own for name in _taken(node))
    later = {name for node in _flat(nodes[at + 1 :]) for name in _taken(node)}
    later |= {name for some in sums[at:] for _, name in some}
    later |= {output.name for output in model.graph.output}
    inputs = tuple(name for name in taken if name not in made and name not in constants)
    outputs = tuple(name for node in own for name in node.output if name in later)
    if not outputs:
        return Segment(b"", (), (), tuple(sums[at]))
    infos = _infos(model)
    graph = onnx.helper.make_graph(
        own,
        f"segment{at}",
        [_known(infos, name) for name in inputs],
        [_known(infos, name) for name in outputs],
        [constants[name] for name in taken if name in constants],
    )
    kept = [one for one in model.opset_import if one.domain != _DOMAIN]
    whole = onnx.helper.make_model(graph, opset_imports=kept, ir_version=model.ir_version)
    return Segment(whole.SerializeToString(), inputs, outputs, tuple(sums[at]))


def _taken(node: onnx.NodeProto) -> list[str]:
    """What a node reads; the graphs in it may read values around it, too."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {value.name for value in (*body.input, *body.initializer)}
            own |= {name for inner in body.node for name in inner.output}
            names += [name for inner in body.node for name in _taken(inner) if name not in own]
            names += [value.name for value in body.output if value.name not in own]
    return names


def _flat(lists: Iterable[list[onnx.NodeProto]]) -> list[onnx.NodeProto]:
    return [node for some in lists for node in some]


def _infos(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    graph = model.graph
    return {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}


def _known(infos: dict[str, onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    if name not in infos or not infos[name].type.tensor_type.elem_type:
        raise InternalError(
            f"the type of {name}, at which the graph is cut, is not known: please report the model"
        )
    return infos[name]
