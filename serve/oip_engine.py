"""The engine `oip`: a served endpoint, seen as an engine, so that it can be proved like one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec
from attnport.serve.oip.client import EndpointError, Transport, get_json, infer, sizes_fit
from attnport.serve.oip.datatypes import oip_datatype

BINARY_EXTENSION = "binary_tensor_data"


class OipEngine(Engine):
    """Runs a bundle's inputs through an endpoint of the Open Inference Protocol.

    Args:
        bundle: What the endpoint serves: it gives names, dtypes and ranges.
        transport: What carries requests to it.
        model: What the endpoint calls the model; the bundle's name by default.
        version: Its version there; by default the one that the endpoint chooses.
        binary: Whether tensors go as bytes, or else as JSON.
    """

    kind = "oip"

    def __init__(
        self,
        bundle: Bundle,
        transport: Transport,
        *,
        model: str | None = None,
        version: str | None = None,
        binary: bool = True,
    ) -> None:
        self.inputs, self.outputs = bundle.manifest.inputs, bundle.manifest.outputs
        self._check = compile_check(self.inputs, bundle.axes)
        self._transport = transport
        self._binary = binary
        self.path = f"/v2/models/{quote(model or bundle.name, safe='')}"
        if version is not None:
            self.path += f"/versions/{quote(version, safe='')}"

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As every engine; raises EndpointError where the endpoint answers with an error."""
        checked = self._check(feeds)
        return infer(
            self._transport, self.path, checked, self.inputs, self.outputs, binary=self._binary
        )

    def placement(self) -> dict[str, int]:
        """Nothing: an endpoint does not tell where it computes."""
        return {}

    def disagreement(self) -> str:
        """How the endpoint's model differs from the bundle's; empty where it is the same.

        Raises:
            EndpointError: If it has no such model.
            EngineUnavailableError: If nobody answers.
        """
        metadata = get_json(self._transport, self.path)
        problems = [
            *_differences("input", metadata.get("inputs"), self.inputs),
            *_differences("output", metadata.get("outputs"), self.outputs),
        ]
        return "; ".join(problems)


def has_binary_tensors(transport: Transport) -> bool:
    """Whether the endpoint says that it takes tensors as bytes.

    Raises:
        EndpointError: If it does not speak the protocol.
        EngineUnavailableError: If nobody answers.
    """
    extensions = get_json(transport, "/v2").get("extensions")
    return isinstance(extensions, list) and BINARY_EXTENSION in extensions


def _differences(what: str, given: object, specs: tuple[TensorSpec, ...]) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise EndpointError(f"the endpoint's metadata lists no {what}s: is it an OIP endpoint?")
    found = {str(item.get("name")): item for item in given}
    expected = {spec.name: spec for spec in specs}
    problems = [f"it has the {what} {name!r} more" for name in found if name not in expected]
    for name, spec in expected.items():
        item = found.get(name)
        if item is None:
            problems.append(f"it lacks the {what} {name!r}")
        elif item.get("datatype") != oip_datatype(spec.dtype):
            problems.append(
                f"{what} {name!r} is {item.get('datatype')} there and {oip_datatype(spec.dtype)} here"
            )
        elif not sizes_fit(item.get("shape", ()), spec):
            problems.append(
                f"{what} {name!r} has shape {item.get('shape')} there and {list(spec.shape)} here"
            )
    return problems
