"""Reads the JSON part of an inference request; the values of its tensors stay as they came."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnport.serve.refusal import bad_request

_REQUEST_KEYS = ("id", "parameters", "inputs", "outputs")
_INPUT_KEYS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_KEYS = ("name", "parameters")
_LARGEST_DIM = 2**31 - 1


@dataclass(frozen=True)
class InputTensor:
    """An input as it stands in the request.

    Attributes:
        name: Of the input.
        shape: Its sizes.
        datatype: The protocol's name of its type.
        data: Its values as JSON holds them; None where they follow the JSON as bytes.
        binary_bytes: How many bytes follow for it; None where the values are in JSON.
    """

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: Sequence[Any] | None
    binary_bytes: int | None


@dataclass(frozen=True)
class InferRequest:
    """An inference request.

    Attributes:
        id: What the client calls it; it comes back in the response.
        inputs: In the order of the request, which is that of the bytes.
        outputs: Which outputs are wanted, and whether as bytes; None where all are.
        binary_output: Whether outputs that say nothing are wanted as bytes.
        timeout_seconds: How long the client waits; None where it does not say.
    """

    id: str | None
    inputs: tuple[InputTensor, ...]
    outputs: Mapping[str, bool] | None
    binary_output: bool
    timeout_seconds: float | None


def parse_request(head: bytes | memoryview) -> InferRequest:
    """Reads the JSON part of a request.

    Raises:
        RefusedError: With status 400, if it is not what the protocol says.
    """
    content = _object(load_json(head), "the request", _REQUEST_KEYS)
    name = content.get("id")
    if name is not None and not isinstance(name, str):
        raise bad_request("the request's id is no string: give a string or leave it out")
    allowed = ("binary_data_output", "timeout", "priority")
    parameters = _parameters(content, "the request", allowed)
    binary = _flag(parameters, "binary_data_output", "the request")
    return InferRequest(
        id=name,
        inputs=_inputs(content.get("inputs")),
        outputs=_outputs(content.get("outputs"), binary),
        binary_output=binary,
        timeout_seconds=_timeout(parameters),
    )


def load_json(text: bytes | memoryview) -> object:
    """JSON in UTF-8, each key once; NaN and Infinity are taken, as Triton takes them.

    Raises:
        RefusedError: With status 400, if it is none.
    """
    try:
        return json.loads(bytes(text).decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as err:
        raise bad_request(f"the request is not UTF-8 (at byte {err.start}): encode it so") from err
    except RecursionError as err:
        raise bad_request(
            "the request's JSON is nested too deeply: the protocol needs 20"
        ) from err
    except ValueError as err:  # JSONDecodeError, and whole numbers of thousands of digits
        raise bad_request(f"the request is not JSON: {str(err)[:200]}") from err


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise bad_request("a key stands twice in one object of the request: give each once")
    return found


def _inputs(items: object) -> tuple[InputTensor, ...]:
    if not isinstance(items, list):
        raise bad_request("the request has no list of inputs: give inputs, a list of tensors")
    found = tuple(_input(item, index) for index, item in enumerate(items))
    _refuse_repeated([tensor.name for tensor in found], "input")
    return found


def _input(item: object, index: int) -> InputTensor:
    content = _object(item, f"inputs[{index}]", _INPUT_KEYS)
    name = _name(content, f"inputs[{index}]")
    where = f"input {name[:80]!r}"
    datatype = content.get("datatype")
    if not isinstance(datatype, str):
        raise bad_request(f"{where} has no datatype: give one such as 'FP32'")
    parameters = _parameters(content, where, ("binary_data_size",))
    size = _binary_size(parameters, where)
    data = content.get("data")
    if data is not None and not isinstance(data, list):
        raise bad_request(f"the data of {where} is no list: give the values in row-major order")
    if (data is None) == (size is None):
        both = "has both data and binary_data_size" if data is not None else "has no data"
        raise bad_request(f"{where} {both}: give data, or binary_data_size and the bytes")
    return InputTensor(name, _shape(content.get("shape"), where), datatype, data, size)


def _outputs(items: object, binary: bool) -> dict[str, bool] | None:
    if items is None or items == []:
        return None
    if not isinstance(items, list):
        raise bad_request("the request's outputs are no list: give a list, or leave it out")
    found: dict[str, bool] = {}
    names = []
    for index, item in enumerate(items):
        content = _object(item, f"outputs[{index}]", _OUTPUT_KEYS)
        name = _name(content, f"outputs[{index}]")
        parameters = _parameters(content, f"output {name[:80]!r}", ("binary_data",))
        names.append(name)
        found[name] = _flag(parameters, "binary_data", f"output {name[:80]!r}", binary)
    _refuse_repeated(names, "output")
    return found


def _object(item: object, where: str, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise bad_request(f"{where} is no JSON object: give one with {', '.join(keys)}")
    unknown = [key for key in item if key not in keys]
    if unknown:
        raise bad_request(f"{where} has the key {unknown[0][:80]!r}: valid are {', '.join(keys)}")
    return item


def _name(content: Mapping[str, Any], where: str) -> str:
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where} has no name: give the name of the tensor as a string")
    return name


def _parameters(
    content: Mapping[str, Any], where: str, allowed: Sequence[str]
) -> Mapping[str, Any]:
    """Those that are served; another one asks for something that would not happen."""
    parameters = content.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise bad_request(f"the parameters of {where} are no JSON object: give one")
    unknown = [key for key in parameters if key not in allowed]
    if unknown:
        raise bad_request(
            f"{where} has the parameter {unknown[0][:80]!r}, which this server does not have: valid "
            f"are {', '.join(allowed)}"
        )
    return parameters


def _flag(parameters: Mapping[str, Any], key: str, where: str, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise bad_request(f"the parameter {key} of {where} is neither true nor false")
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Triton's parameter, in microseconds; 0 is none there."""
    value = parameters.get("timeout", 0)
    if not _is_whole(value) or not 0 <= value < 2**63:
        raise bad_request("the parameter timeout is no whole number of microseconds")
    if not _is_whole(parameters.get("priority", 0)) or parameters.get("priority", 0) != 0:
        raise bad_request("the parameter priority is not 0: this server answers in turn")
    return value / 1e6 if value else None


def _binary_size(parameters: Mapping[str, Any], where: str) -> int | None:
    value = parameters.get("binary_data_size")
    if value is None:
        return None
    if not _is_whole(value) or value < 0:
        raise bad_request(f"binary_data_size of {where} is no whole number of bytes")
    return int(value)


def _shape(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(_is_whole(dim) for dim in value):
        raise bad_request(f"the shape of {where} is no list of whole numbers: give its sizes")
    for dim in value:
        if not 0 <= dim <= _LARGEST_DIM:
            raise bad_request(f"the shape of {where} holds {_short(dim)}: sizes are 0 or more")
    return tuple(value)


def _refuse_repeated(names: Sequence[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise bad_request(f"{what} {name[:80]!r} is given twice: give each {what} once")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "a number of more than 20 digits"
