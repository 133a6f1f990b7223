"""The table of layers that TensorRT's builder writes to its log.

With a VERBOSE logger and ProfilingVerbosity.DETAILED the builder logs one message that begins
with "Layers:" and gives a line to each layer of the plan: name, type, tactic, and the ONNX nodes
that ended in it. It needs no GPU, unlike the engine inspector. Read from TensorRT for RTX 1.7.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from attnport.engines.plan import PlanLayer
from attnport.errors import InternalError

TABLE_HEADER = "Layers:"

_LAYER = re.compile(r"Name: (?P<name>.*?), LayerType: (?P<type>\w+)")
_TACTIC = re.compile(r"TacticName: ([^,]*)")
_METADATA = re.compile(r"Metadata: (.*)$")
_NODE = re.compile(r"\[ONNX Layer: ([^\]\x1e]*)")
_PROFILE = re.compile(r"_myl(\d+)_\d+$")


def parse_layer_tables(messages: Iterable[str]) -> tuple[PlanLayer, ...]:
    """The rows of every "Layers:" message among a builder's messages.

    Raises:
        InternalError: If there is no row, so that nothing can be said of the plan.
    """
    layers = _numbered_from_0(
        layer
        for message in messages
        if message.startswith(TABLE_HEADER)
        for layer in map(_parse_row, message.split("\n"))
        if layer is not None
    )
    if not layers:
        raise InternalError(
            "TensorRT built a plan and logged no table of layers, so nothing can be said about "
            "fusion: please report it with the version of TensorRT"
        )
    return layers


def _numbered_from_0(rows: Iterable[PlanLayer]) -> tuple[PlanLayer, ...]:
    """The rows with profiles 0, 1, … in place of the indices in their names.

    An index counts the engine's layers, and copies of shapes to the device stand among them: the
    only profile of an engine that begins with such a copy is `_myl1`.
    """
    layers = tuple(rows)
    indices = sorted({layer.profile for layer in layers if _PROFILE.search(layer.name)})
    profiles = {index: profile for profile, index in enumerate(indices)}
    return tuple(
        layer.model_copy(update={"profile": profiles.get(layer.profile, 0)}) for layer in layers
    )


def parse_inspections(documents: Iterable[str]) -> tuple[PlanLayer, ...]:
    """The layers that the engine inspector tells of, one JSON document for each profile.

    The form is that of IEngineInspector.get_engine_information(LayerInformationFormat.JSON) with
    ProfilingVerbosity.DETAILED, as the documentation of TensorRT 10 and 11 gives it; unrun here,
    since the inspector needs a device.

    Raises:
        InternalError: If no document names a layer.
    """
    layers = tuple(
        _inspected(layer, profile)
        for profile, document in enumerate(documents)
        for layer in json.loads(document).get("Layers", ())
        if isinstance(layer, dict)  # with less verbosity it is a bare name, which proves nothing
    )
    if not layers:
        raise InternalError(
            "TensorRT's inspector tells of no layer, so nothing can be said about fusion: please "
            "report it with the version of TensorRT"
        )
    return layers


def _inspected(layer: dict[str, object], profile: int) -> PlanLayer:
    metadata = str(layer.get("Metadata") or "")
    return PlanLayer(
        name=str(layer.get("Name") or ""),
        type=str(layer.get("LayerType") or ""),
        tactic=str(layer.get("TacticName") or "") or None,
        nodes=tuple(dict.fromkeys(_NODE.findall(metadata))),
        profile=profile,
    )


def _parse_row(line: str) -> PlanLayer | None:
    row = _LAYER.match(line)
    if row is None:
        return None
    tactic = _TACTIC.search(line, row.end())
    metadata = _METADATA.search(line)
    profile = _PROFILE.search(row["name"])
    return PlanLayer(
        name=row["name"],
        type=row["type"],
        tactic=(tactic[1] or None) if tactic else None,
        nodes=tuple(dict.fromkeys(_NODE.findall(metadata[1]))) if metadata else (),
        profile=int(profile[1]) if profile else 0,
    )
