"""Every field of the protocol wrong in turn: a 4xx with a sentence, never a 500, never a hang."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from tests.serve.bundles import WIDTH
from tests.serve.running import Running

GOOD = np.arange(WIDTH, dtype=np.float32)
SHAPE = [1, 1, WIDTH]
INPUT = {"name": "x", "shape": SHAPE, "datatype": "FP32", "data": GOOD.tolist()}
BY_BYTES = {
    "name": "x",
    "shape": SHAPE,
    "datatype": "FP32",
    "parameters": {"binary_data_size": GOOD.nbytes},
}
LENGTH = "Inference-Header-Content-Length"


def with_input(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{k: v for k, v in {**INPUT, **changes}.items() if v is not ...}]}


WRONG_JSON: dict[str, tuple[Any, str]] = {
    "not an object": ([1], "the request is no JSON object"),
    "a string": ("x", "the request is no JSON object"),
    "no inputs": ({}, "no list of inputs"),
    "inputs are an object": ({"inputs": {"x": 1}}, "no list of inputs"),
    "inputs are null": ({"inputs": None}, "no list of inputs"),
    "an input is a number": ({"inputs": [3]}, "inputs[0] is no JSON object"),
    "unknown key": ({"inputs": [INPUT], "input": []}, "has the key 'input'"),
    "unknown key of an input": (with_input(dtype="FP32"), "has the key 'dtype'"),
    "id is a number": ({"inputs": [INPUT], "id": 3}, "id is no string"),
    "parameters are a list": ({"inputs": [INPUT], "parameters": []}, "are no JSON object"),
    "unknown parameter": (
        {"inputs": [INPUT], "parameters": {"sequence_id": 3}},
        "has the parameter 'sequence_id', which this server does not have",
    ),
    "timeout is a string": ({"inputs": [INPUT], "parameters": {"timeout": "1"}}, "microseconds"),
    "timeout is negative": ({"inputs": [INPUT], "parameters": {"timeout": -1}}, "microseconds"),
    "priority": ({"inputs": [INPUT], "parameters": {"priority": 2}}, "answers in turn"),
    "binary flag is a number": (
        {"inputs": [INPUT], "parameters": {"binary_data_output": 1}},
        "neither true nor false",
    ),
    "missing input": ({"inputs": []}, "missing: x"),
    "unknown input": (with_input(name="z"), "there is no input 'z': the model takes x"),
    "name is a number": (with_input(name=3), "has no name"),
    "name is empty": (with_input(name=""), "has no name"),
    "name is missing": (with_input(name=...), "has no name"),
    "duplicate input": ({"inputs": [INPUT, INPUT]}, "input 'x' is given twice"),
    "datatype is missing": (with_input(datatype=...), "has no datatype"),
    "datatype does not exist": (with_input(datatype="FP31"), "the model takes FP32: convert it"),
    "datatype is another": (with_input(datatype="INT64"), "the model takes FP32: convert it"),
    "datatype is BYTES": (with_input(datatype="BYTES"), "the model takes FP32: convert it"),
    "shape is missing": (with_input(shape=...), "no list of whole numbers"),
    "shape is a number": (with_input(shape=8), "no list of whole numbers"),
    "shape holds a fraction": (with_input(shape=[1, 1, 8.0]), "no list of whole numbers"),
    "shape holds true": (with_input(shape=[True, 1, 8]), "no list of whole numbers"),
    "shape holds a string": (with_input(shape=["1", 1, 8]), "no list of whole numbers"),
    "negative dim": (with_input(shape=[1, -1, 8]), "holds -1: sizes are 0 or more"),
    "huge dim": (with_input(shape=[1, 2**31, 8]), "holds 2147483648"),
    "absurd dim": (with_input(shape=[10**1000, 1, 8]), "more than 20 digits"),
    "large dims": (with_input(shape=[2**31 - 1] * 3), "takes far more"),
    "large dims and no data": (with_input(shape=[0, 2**31 - 1, 2**31 - 1], data=[]), "too large"),
    "another rank": (with_input(shape=[8]), "is given with 1 dimensions, and the model takes 3"),
    "another fixed size": (with_input(shape=[1, 2, 4]), "has shape (1, 2, 4): give (batch 1..8"),
    "axis beyond its range": (
        with_input(shape=[9, 1, 8], data=[0.0] * 72),
        "axis 'batch' takes 1 to 8",
    ),
    "axis below its range": (with_input(shape=[1, 0, 8], data=[]), "axis 'seq' takes 1 to 16"),
    "no data": (with_input(data=...), "has no data"),
    "data is a string": (with_input(data="AAAA"), "is no list"),
    "data is an object": (with_input(data={"0": 1}), "is no list"),
    "data is short": (with_input(data=[1.0]), "has 1 values, and its shape [1, 1, 8] takes 8"),
    "data is long": (with_input(data=[0.0] * 9), "has 9 values"),
    "data holds null": (with_input(data=[None] * 8), "holds null: give numbers"),
    "data holds strings": (with_input(data=["1"] * 8), "holds a string: give numbers"),
    "data holds true": (with_input(data=[True] * 8), "holds true or false: give numbers"),
    "data holds objects": (with_input(data=[{}] * 8), "holds an object: give numbers"),
    "data beyond the dtype": (with_input(data=[1e39] * 8), "holds a number beyond float32"),
    "data is a huge whole number": (with_input(data=[10**400] * 8), "holds a number beyond"),
    "data nested otherwise": (with_input(data=[GOOD.tolist()]), "is nested as [1, 8]"),
    "data nested unevenly": (with_input(data=[[0.0] * 4, [0.0] * 3, 1.0]), "nested unevenly"),
    "data nested too deeply": (with_input(data=[[[[GOOD.tolist()]]]]), "is nested as"),
    "data and bytes": (
        with_input(parameters={"binary_data_size": 32}),
        "has both data and binary_data_size",
    ),
    "bytes that are not there": ({"inputs": [BY_BYTES]}, "is to have 32 bytes, and 0 are left"),
    "unknown parameter of an input": (
        with_input(parameters={"shared_memory_region": "r"}),
        "has the parameter 'shared_memory_region'",
    ),
    "binary size is negative": (
        with_input(data=..., parameters={"binary_data_size": -1}),
        "no whole number of bytes",
    ),
    "binary size is a string": (
        with_input(data=..., parameters={"binary_data_size": "32"}),
        "no whole number of bytes",
    ),
    "outputs are a string": ({"inputs": [INPUT], "outputs": "y"}, "outputs are no list"),
    "unknown output": ({"inputs": [INPUT], "outputs": [{"name": "z"}]}, "there is no output 'z'"),
    "duplicate output": (
        {"inputs": [INPUT], "outputs": [{"name": "y"}, {"name": "y"}]},
        "output 'y' is given twice",
    ),
    "classification": (
        {"inputs": [INPUT], "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
        "has the parameter 'classification'",
    ),
    "a lone surrogate": (with_input(name="\ud800"), "there is no input"),
}


@pytest.mark.parametrize(("content", "said"), WRONG_JSON.values(), ids=WRONG_JSON)
def test_wrong_json(live: Running, content: Any, said: str) -> None:
    status, answer = live.infer("identity-float32", content)
    assert (status, said in answer["error"]) == (400, True), answer


DEEP = b"[" * 200_000
WRONG_BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "half": (b'{"inputs": [', "is not JSON"),
    "not UTF-8": (b'{"id": "\xff\xfe"}', "is not UTF-8 (at byte 8)"),
    "UTF-16": (json.dumps({"inputs": []}).encode("utf-16"), "is not UTF-8"),
    "nested without end": (DEEP, "nested too deeply"),
    "nested objects without end": (b'{"a":' * 100_000, "nested too deeply"),
    "a number of many digits": (b'{"inputs": ' + b"9" * 10_000 + b"}", "is not JSON"),
    "a key twice": (b'{"inputs": [], "inputs": []}', "stands twice"),
    "trailing text": (b"{} {}", "is not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "is not JSON"),
}


@pytest.mark.parametrize(("body", "said"), WRONG_BODIES.values(), ids=WRONG_BODIES)
def test_wrong_bodies(live: Running, body: bytes, said: str) -> None:
    status, answer = live.infer("identity-float32", body)
    assert (status, said in answer["error"]) == (400, True), answer


HEAD = json.dumps({"inputs": [BY_BYTES]}).encode()
WRONG_LENGTHS: dict[str, tuple[str, bytes, str]] = {
    "longer than the body": (str(len(HEAD) + 99), HEAD, "and the body has"),
    "a word": ("many", HEAD, "give the length of the JSON in bytes"),
    "negative": ("-1", HEAD, "give the length of the JSON in bytes"),
    "of many digits": ("9" * 5000, HEAD, "and the body has"),
    "zero": ("0", HEAD, "is not JSON"),
    "too short": (str(len(HEAD) - 1), HEAD + GOOD.tobytes(), "is not JSON"),
    "fewer bytes": (str(len(HEAD)), HEAD + GOOD.tobytes()[:-1], "is to have 32 bytes, and 31"),
    "more bytes": (str(len(HEAD)), HEAD + GOOD.tobytes() + b"!", "1 bytes follow the last tensor"),
    "no bytes": (str(len(HEAD)), HEAD, "is to have 32 bytes, and 0 are left"),
}


@pytest.mark.parametrize(("length", "body", "said"), WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
def test_wrong_lengths(live: Running, length: str, body: bytes, said: str) -> None:
    status, answer = live.infer("identity-float32", body, {LENGTH: length})
    assert (status, said in answer["error"]) == (400, True), answer


def test_bytes_of_another_size(live: Running) -> None:
    entry = {**BY_BYTES, "parameters": {"binary_data_size": 31}}
    head = json.dumps({"inputs": [entry]}).encode()
    body, headers = head + GOOD.tobytes()[:31], {LENGTH: str(len(head))}
    status, answer = live.infer("identity-float32", body, headers)
    assert status == 400
    assert "comes with 31 bytes, and its shape [1, 1, 8] of float32 takes 32" in answer["error"]


@pytest.mark.parametrize(
    ("model", "datatype", "data", "said"),
    [
        ("identity-int64", "INT64", [0.5] * 8, "holds a fraction: give whole numbers"),
        ("identity-int64", "INT64", [2**63] * 8, "holds a number beyond int64"),
        ("identity-int32", "INT32", [2**31] * 8, "holds a number beyond int32"),
        ("identity-uint8", "UINT8", [-1] * 8, "holds a number beyond uint8"),
        ("identity-bool", "BOOL", [1] * 8, "holds a whole number: give true or false"),
        ("identity-float16", "FP16", [70000] * 8, "holds a number beyond float16"),
        ("tokens", "INT64", [100] * 8, "holds the token id 100: give ids from 0 to 99"),
        ("tokens", "INT64", [-1] * 8, "holds the token id -1"),
    ],
)
def test_values_that_do_not_fit(
    live: Running, model: str, datatype: str, data: list[Any], said: str
) -> None:
    status, answer = live.infer(model, with_input(datatype=datatype, data=data))
    assert (status, said in answer["error"]) == (400, True), answer


def test_a_bool_byte_that_is_neither(live: Running) -> None:
    parameters = {"binary_data_size": 8}
    content = with_input(datatype="BOOL", data=..., parameters=parameters)
    head = json.dumps(content).encode()
    status, answer = live.infer("identity-bool", head + b"\2" * 8, {LENGTH: str(len(head))})
    assert (status, "neither 0 nor 1" in answer["error"]) == (400, True)


WHOLE = json.dumps({"inputs": [INPUT]}).encode()
WRONG_ENCODINGS: dict[str, tuple[str, bytes, int, str]] = {
    "not gzip": ("gzip", WHOLE, 400, "is not gzip data"),
    "half": ("gzip", gzip.compress(WHOLE)[:-9], 400, "ends too early"),
    "nothing": ("gzip", b"", 400, "ends too early"),
    "more after it": ("gzip", gzip.compress(WHOLE) + b"more", 400, "4 bytes follow"),
    "not deflate": ("deflate", WHOLE, 400, "is not deflate data"),
    "raw deflate": ("deflate", zlib.compress(WHOLE, wbits=-15), 400, "is not deflate data"),
    "another encoding": ("br", WHOLE, 415, "send gzip, deflate or none"),
    "two encodings": ("gzip, gzip", WHOLE, 415, "send gzip, deflate or none"),
}


@pytest.mark.parametrize(
    ("encoding", "body", "status", "said"), WRONG_ENCODINGS.values(), ids=WRONG_ENCODINGS
)
def test_wrong_encodings(
    live: Running, encoding: str, body: bytes, status: int, said: str
) -> None:
    got, answer = live.infer("identity-float32", body, {"Content-Encoding": encoding})
    assert (got, said in answer["error"]) == (status, True), answer


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_not_unpacked(live: Running, encoding: str) -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    body = bomb.compress(b" " * (256 << 20)) + bomb.flush()
    assert len(body) < 1 << 20
    status, answer = live.infer("identity-float32", body, {"Content-Encoding": encoding})
    assert (status, "bytes decompressed" in answer["error"]) == (413, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/v2/models/nothing/infer", 404, "there is no model 'nothing'"),
        ("POST", "/v2/models/versions/versions/3/infer", 404, "no version '3' of model"),
        ("POST", "/v2/models/versions/versions/02/infer", 404, "no version '02'"),
        ("POST", "/v2/models/versions/versions/-1/infer", 404, "no version '-1'"),
        ("POST", "/v2/models/%2e%2e%2f/infer", 404, "there is nothing at"),
        ("POST", "/v2/models/%ff%fe/infer", 404, "there is no model"),
        ("GET", "/v2/models/attention/infer", 405, "does not take GET"),
        ("DELETE", "/v2/models/attention", 405, "does not take DELETE"),
        ("POST", "/v2/models/attention/infer/", 404, "there is nothing at"),
        ("GET", "/v2/models/nothing", 404, "there is no model 'nothing'"),
        ("GET", "/v2/models/nothing/ready", 404, "there is no model 'nothing'"),
        ("GET", "/", 404, "the protocol's paths"),
        ("GET", "/v3", 404, "the protocol's paths"),
    ],
)
def test_wrong_paths(live: Running, method: str, path: str, status: int, said: str) -> None:
    reply = live.send(method, path, b"{}" if method == "POST" else b"")
    assert reply.status == status
    assert said in json.loads(reply.body)["error"]
