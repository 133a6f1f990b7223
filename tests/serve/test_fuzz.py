"""Requests that nobody wrote: whatever they hold, the answer is a 200 or a 4xx with a sentence.

Bounded here; `make fuzz-serve` goes on for longer. What was found stays as an @example.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.serve.running import Running

EXAMPLES = int(os.environ.get("ATTNPORT_FUZZ_EXAMPLES", "150"))
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMBERS = np.arange(8, dtype=np.float32)
GOOD: dict[str, Any] = {
    "id": "1",
    "parameters": {"binary_data_output": False},
    "inputs": [
        {"name": "x", "shape": [1, 1, 8], "datatype": "FP32", "data": NUMBERS.tolist()},
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
}
BY_BYTES: dict[str, Any] = {
    "inputs": [
        {
            "name": "x",
            "shape": [1, 1, 8],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 32},
        },
    ],
}

words = st.sampled_from(
    [
        "id",
        "parameters",
        "inputs",
        "outputs",
        "name",
        "shape",
        "datatype",
        "data",
        "binary_data",
        "binary_data_size",
        "x",
        "y",
        "FP32",
        "BOOL",
        "BF16",
        "timeout",
        "priority",
        "binary_data_output",
    ]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 9)
    | st.floats()
    | st.text(max_size=20)
    | words
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(words, inner, max_size=5),
    max_leaves=30,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a nest of objects and lists."""
    found = [at]
    if isinstance(value, dict):
        found += [path for key in value for path in paths(value[key], (*at, key))]
    elif isinstance(value, list):
        found += [path for i, item in enumerate(value) for path in paths(item, (*at, i))]
    return found


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The same nest with something else at one place; `...` takes it out."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    inner = changed(copy[at[0]], at[1:], new)
    if inner is ...:
        del copy[at[0]]
    else:
        copy[at[0]] = inner
    return copy


@st.composite
def nearly_good(draw: st.DrawFn, good: dict[str, Any]) -> Any:
    """A good request with one to three places changed."""
    content: Any = good
    for _ in range(draw(st.integers(1, 3))):
        places = paths(content)[1:] if isinstance(content, dict | list) else []
        if not places:
            break
        content = changed(content, draw(st.sampled_from(places)), draw(anything | st.just(...)))
    return content


def check(live: Running, body: bytes, headers: dict[str, str]) -> int:
    reply = live.send("POST", "/v2/models/identity-float32/infer", body, headers)
    content = json.loads(reply.body) if reply.status != 200 else {}
    assert reply.status == 200 or (400 <= reply.status < 500 and len(content["error"]) > 10), (
        reply.status,
        content,
    )
    return reply.status


@bounded
@given(nearly_good(GOOD))
@example(GOOD)
@example(changed(GOOD, ("inputs", 0, "shape"), [1, 1, float("inf")]))
@example(changed(GOOD, ("inputs", 0, "name"), "\x00"))
@example(changed(GOOD, ("id",), "\ud800"))
@example(changed(GOOD, ("parameters",), {"timeout": 10**30}))
@example(changed(GOOD, ("inputs", 0, "data"), [[[]]]))
@example(changed(GOOD, ("inputs", 0, "data"), [-(2**70)] * 8))
def test_requests_in_json(live: Running, content: Any) -> None:
    check(live, json.dumps(content).encode(), {})


@bounded
@given(
    nearly_good(BY_BYTES) | st.just(BY_BYTES),
    st.binary(max_size=40) | st.just(NUMBERS.tobytes()),
    st.integers(-3, 3) | st.integers(),
)
@example(BY_BYTES, NUMBERS.tobytes(), 0)
@example(changed(BY_BYTES, ("inputs", 0, "parameters", "binary_data_size"), 2**64), b"", 0)
def test_requests_by_bytes(live: Running, content: Any, tail: bytes, off: int) -> None:
    head = json.dumps(content).encode()
    check(live, head + tail, {"Inference-Header-Content-Length": str(len(head) + off)})


@bounded
@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "identity", "br", "\xff"]))
@example(b"\x1f\x8b", "gzip")
@example(b"\x78\x9c", "deflate")
def test_bodies_of_noise(live: Running, body: bytes, encoding: str) -> None:
    assert check(live, body, {"Content-Encoding": encoding}) >= 400


@settings(bounded, max_examples=max(EXAMPLES // 3, 1))
@given(st.binary(min_size=1, max_size=300))
@example(b"POST /v2/models/identity-float32/infer HTTP/1.1\r\nContent-Length: -1\r\n\r\n")
@example(b"POST /v2/models/identity-float32/infer HTTP/1.1\r\nContent-Length: 1e9\r\n\r\n")
@example(b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n")
@example(b"GET http://[ HTTP/1.1\r\nHost: h\r\n\r\n")
@example(b"GET /v2 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
def test_connections_of_noise(live: Running, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", live.port), 10) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass  # it closed with some of the noise unread
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert live.send("GET", "/v2/health/live").status == 200
