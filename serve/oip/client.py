"""Sends requests of the protocol and reads what comes back, whoever answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.errors import AttnportError
from attnport.export.records import TensorSpec
from attnport.serve.oip.datatypes import oip_datatype
from attnport.serve.oip.exchange import HEADER_LENGTH, write_request
from attnport.serve.oip.tensors import array_from_bytes, array_from_json
from attnport.serve.refusal import RefusedError


class EndpointError(AttnportError, RuntimeError):
    """An endpoint answered with an error, or with something that the protocol does not allow."""


@dataclass(frozen=True)
class Reply:
    """An HTTP response.

    Attributes:
        status: Its status.
        headers: By lower-case name.
        body: Decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


Transport = Callable[[str, str, Mapping[str, str], bytes], Reply]  # method, path, headers, body


def get_json(transport: Transport, path: str) -> dict[str, Any]:
    """What the endpoint tells at a path.

    Raises:
        EndpointError: If it answers with an error, or with something else than a JSON object.
    """
    reply = transport("GET", path, {}, b"")
    _require_success(reply, path)
    return _json_object(reply.body, path)


def infer(
    transport: Transport,
    path: str,
    feeds: Mapping[str, np.ndarray],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    binary: bool = True,
) -> dict[str, np.ndarray]:
    """One inference.

    Args:
        transport: What carries it.
        path: Of the model, without "/infer".
        feeds: The inputs.
        inputs: What the model takes.
        outputs: What it gives.
        binary: Whether tensors go as bytes, or else as JSON.

    Raises:
        EndpointError: If the endpoint refuses it, or answers something else than was asked for.
    """
    message = write_request(feeds, inputs, outputs, binary=binary)
    reply = transport("POST", f"{path}/infer", message.headers, message.body)
    _require_success(reply, f"{path}/infer")
    try:
        return _outputs(reply, outputs)
    except RefusedError as err:
        raise EndpointError(f"the response of {path} cannot be read: {err}") from err
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise EndpointError(
            f"the response of {path} is not what the protocol says ({type(err).__name__}: {err})"
        ) from err


def _outputs(reply: Reply, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    length = reply.headers.get(HEADER_LENGTH)
    at = len(reply.body) if length is None else int(length)
    content = _json_object(reply.body[:at], "the response")
    dtypes = {spec.name: spec.dtype for spec in specs}
    found = {}
    blocks = memoryview(reply.body)
    for item in content.get("outputs", ()):
        name = str(item.get("name"))
        dtype = dtypes.get(name)
        if dtype is None or item.get("datatype") != oip_datatype(dtype):
            raise EndpointError(
                f"the endpoint gives {name!r} as {item.get('datatype')}: the bundle's outputs are "
                + ", ".join(f"{spec.name} {oip_datatype(spec.dtype)}" for spec in specs)
            )
        shape = tuple(int(size) for size in item["shape"])
        size = item.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[name] = array_from_json(item["data"], shape, dtype, f"output {name!r}")
        else:
            block = blocks[at : at + int(size)]
            found[name] = array_from_bytes(block, shape, dtype, f"output {name!r}")
            at += int(size)
    return found


def _require_success(reply: Reply, path: str) -> None:
    if reply.status == 200:
        return
    try:
        sentence = str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        sentence = reply.body[:200].decode("utf-8", "replace") or "it says nothing more"
    raise EndpointError(f"{path} answers {reply.status}: {sentence}")


def _json_object(body: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError as err:
        raise EndpointError(f"{where} holds no JSON ({err}): is it an OIP endpoint?") from err
    if not isinstance(content, dict):
        raise EndpointError(f"{where} holds no JSON object: is it an OIP endpoint?")
    return content


def sizes_fit(shape: Sequence[object], spec: TensorSpec) -> bool:
    """Whether a shape from metadata is that of a tensor; -1 stands for any size."""
    return len(shape) == len(spec.shape) and all(
        size == -1 or (size == dim if isinstance(dim, int) else isinstance(size, int))
        for size, dim in zip(shape, spec.shape, strict=True)
    )
