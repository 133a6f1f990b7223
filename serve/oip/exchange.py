"""From the body of a request to arrays, and from arrays to the body of a response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.export.records import TensorSpec
from attnport.serve.oip.datatypes import oip_datatype
from attnport.serve.oip.request import InferRequest, InputTensor, parse_request
from attnport.serve.oip.tensors import (
    array_from_bytes,
    array_from_json,
    bytes_from_array,
    json_from_array,
)
from attnport.serve.refusal import RefusedError, bad_request

HEADER_LENGTH = "inference-header-content-length"
JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"


@dataclass(frozen=True)
class Message:
    """A body and the headers that tell how to read it.

    Attributes:
        parts: The body: JSON, then the bytes of each tensor.
        headers: Content-Type, and where bytes follow the length of the JSON.
    """

    parts: tuple[bytes | memoryview, ...]
    headers: dict[str, str]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


def split_body(body: bytes, header_length: str | None, json_bytes_max: int) -> memoryview:
    """The JSON part of a body; the tensors' bytes follow it.

    Args:
        body: The whole body.
        header_length: The header that says how long the JSON is; without it, all is JSON.
        json_bytes_max: How much JSON is read.

    Raises:
        RefusedError: If the length is no number, or more than there is.
    """
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdecimal()):
            raise bad_request(
                f"Inference-Header-Content-Length is {header_length[:40]!r}: give the length of the "
                "JSON in bytes"
            )
        length = int(header_length) if len(header_length) < 20 else len(body) + 1
        if length > len(body):
            raise bad_request(
                f"Inference-Header-Content-Length is {header_length[:20]}, and the body has "
                f"{len(body)} bytes: give the length of the JSON in bytes"
            )
    if length > json_bytes_max:
        raise RefusedError(
            413,
            f"the request holds {length} bytes of JSON, and {json_bytes_max} are read: send the "
            "tensors as bytes (binary_data_size)",
        )
    return memoryview(body)[:length]


def read_request(
    body: bytes, head: memoryview, specs: Mapping[str, TensorSpec]
) -> tuple[InferRequest, dict[str, np.ndarray]]:
    """A request and its arrays.

    Args:
        body: The whole body.
        head: Its JSON part, as `split_body` gives it.
        specs: The model's inputs by name.

    Raises:
        RefusedError: If it is not what the protocol says, or a tensor is not one of the model's.
    """
    request = parse_request(head)
    feeds = {}
    at = len(head)
    blocks = memoryview(body)
    for tensor in request.inputs:
        spec = _spec_of(tensor, specs)
        size = tensor.binary_bytes or 0
        if size > len(body) - at:
            raise bad_request(
                f"input {tensor.name!r} is to have {size} bytes, and {len(body) - at} are left in "
                "the body: give binary_data_size and Inference-Header-Content-Length as they are"
            )
        feeds[tensor.name] = _array(tensor, blocks[at : at + size], spec)
        at += size
    if at != len(body):
        raise bad_request(
            f"{len(body) - at} bytes follow the last tensor: give each tensor's binary_data_size, "
            "and nothing else"
        )
    return request, feeds


def write_response(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    specs: Sequence[TensorSpec],
) -> Message:
    """The response to a request, with the outputs that it asks for, in its order.

    Raises:
        RefusedError: If it asks for one that the model does not have.
    """
    content: dict[str, object] = {"model_name": model, "model_version": version}
    if request.id is not None:
        content["id"] = request.id
    wanted = wanted_outputs(request, specs)
    dtypes = {spec.name: spec.dtype for spec in specs}
    tensors = []
    blocks: list[memoryview] = []
    for name, binary in wanted.items():
        entry, block = describe(name, dtypes[name], outputs[name], binary=binary)
        tensors.append(entry)
        if block is not None:
            blocks.append(block)
    content["outputs"] = tensors
    return _message(content, blocks)


def wanted_outputs(request: InferRequest, specs: Sequence[TensorSpec]) -> dict[str, bool]:
    """For each output that is to be sent whether it goes as bytes.

    Raises:
        RefusedError: If the model does not have one of them.
    """
    if request.outputs is None:
        return {spec.name: request.binary_output for spec in specs}
    names = [spec.name for spec in specs]
    for name in request.outputs:
        if name not in names:
            known = ", ".join(names)
            raise bad_request(f"there is no output {name[:80]!r}: the model gives {known}")
    return dict(request.outputs)


def write_request(
    feeds: Mapping[str, np.ndarray],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    binary: bool = True,
    request_id: str | None = None,
) -> Message:
    """A request for every output, as a client sends it."""
    content: dict[str, object] = {} if request_id is None else {"id": request_id}
    tensors = []
    blocks = []
    for spec in inputs:
        entry, block = describe(spec.name, spec.dtype, feeds[spec.name], binary=binary)
        tensors.append(entry)
        if block is not None:
            blocks.append(block)
    content["inputs"] = tensors
    content["outputs"] = [
        {"name": spec.name, "parameters": {"binary_data": binary}} for spec in outputs
    ]
    return _message(content, blocks)


def describe(
    name: str, dtype: str, array: np.ndarray, *, binary: bool
) -> tuple[dict[str, object], memoryview | None]:
    """A tensor's entry in the JSON, and its bytes where they are not in it."""
    entry: dict[str, object] = {
        "name": name,
        "datatype": oip_datatype(dtype),
        "shape": list(array.shape),
    }
    if not binary:
        return {**entry, "data": json_from_array(array)}, None
    block = bytes_from_array(array)
    return {**entry, "parameters": {"binary_data_size": len(block)}}, block


def _message(content: Mapping[str, object], blocks: Sequence[memoryview]) -> Message:
    head = json.dumps(content, separators=(",", ":")).encode("ascii")
    headers = {"content-type": JSON_TYPE}
    if blocks:
        headers = {"content-type": BINARY_TYPE, HEADER_LENGTH: str(len(head))}
    return Message((head, *blocks), headers)


def _spec_of(tensor: InputTensor, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    spec = specs.get(tensor.name)
    if spec is None:
        known = ", ".join(specs)
        raise bad_request(f"there is no input {tensor.name[:80]!r}: the model takes {known}")
    datatype = oip_datatype(spec.dtype)
    if tensor.datatype != datatype:
        raise bad_request(
            f"input {tensor.name!r} is given as {tensor.datatype[:20]!r}, and the model takes "
            f"{datatype}: convert it"
        )
    if len(tensor.shape) != len(spec.shape):
        raise bad_request(
            f"input {tensor.name!r} is given with {len(tensor.shape)} dimensions, and the model "
            f"takes {len(spec.shape)}: {list(spec.shape)}"
        )
    return spec


def _array(tensor: InputTensor, block: memoryview, spec: TensorSpec) -> np.ndarray:
    where = f"input {tensor.name!r}"
    if tensor.data is not None:
        array = array_from_json(tensor.data, tensor.shape, spec.dtype, where)
    else:
        array = array_from_bytes(block, tensor.shape, spec.dtype, where)
    if spec.high is not None and array.size:
        _refuse_unknown_tokens(array, spec.high, where)
    return array


def _refuse_unknown_tokens(array: np.ndarray, high: int, where: str) -> None:
    low, top = int(array.min()), int(array.max())
    if low < 0 or top >= high:
        wrong = low if low < 0 else top
        raise bad_request(f"{where} holds the token id {wrong}: give ids from 0 to {high - 1}")
