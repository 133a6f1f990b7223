"""Each limit has its status and its sentence, and nothing hangs."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import trustme
from tests.serve.bundles import NumpyIdentity, identity_bundle, sample
from tests.serve.running import Running, running, wait_until

from attnport.engines.open import open_engine
from attnport.errors import GraphError, UsageError
from attnport.export.bundle import Bundle
from attnport.serve.oip.exchange import write_request
from attnport.serve.served_model import ServedModel
from attnport.serve.settings import Limits, Settings, body_bytes_for


class Slow(NumpyIdentity):
    """Computes when it may."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.go = threading.Event()
        self.go.set()

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert self.go.wait(20)
        return super().run(feeds)


def settings(**limits: float) -> Settings:
    return Settings(port=0, drain_seconds=0.0, limits=Limits(**limits))  # type: ignore[arg-type]


@contextmanager
def slow_endpoint(identity: Bundle, **limits: float) -> Iterator[tuple[Running, Slow]]:
    engine = Slow(identity)
    queue = int(limits.get("queue", 128))
    model = ServedModel("slow", "1", identity, engine, queue=queue)
    with running([model], settings(**limits)) as endpoint:
        try:
            yield endpoint, engine
        finally:
            engine.go.set()


def message(identity: Bundle, rows: int = 1) -> tuple[bytes, dict[str, str]]:
    made = write_request(
        {"x": sample("float32", rows)}, identity.manifest.inputs, identity.manifest.outputs
    )
    return made.body, made.headers


def post(endpoint: Running, identity: Bundle, found: list[int]) -> threading.Thread:
    body, headers = message(identity)

    def send() -> None:
        found.append(endpoint.send("POST", "/v2/models/slow/infer", body, headers).status)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_body_beyond_the_limit(identity: Bundle) -> None:
    model = ServedModel("m", "1", identity, open_engine(identity, "ort-cpu", threads=1))
    with running([model], settings(body_bytes=2000, json_bytes=1000)) as endpoint:
        status, answer = endpoint.infer("m", b" " * 2001)
        assert (status, "the body has 2001 bytes, and 2000 are taken" in answer["error"]) == (
            413,
            True,
        )
        status, answer = endpoint.infer("m", b" " * 1001)
        assert (status, "holds 1001 bytes of JSON" in answer["error"]) == (413, True)
        reply = _chunked(endpoint, [b" " * 500] * 5)
        assert b"413" in reply.split(b"\r\n")[0]
        assert b"more than 2000 bytes" in reply


def test_a_client_that_goes_on_sending_sees_the_sentence(identity: Bundle) -> None:
    model = ServedModel("m", "1", identity, open_engine(identity, "ort-cpu", threads=1))
    with running([model], settings(body_bytes=1 << 20)) as endpoint:
        status, answer = endpoint.infer("m", b" " * (64 << 20))
        assert (status, "1048576 are taken" in answer["error"]) == (413, True)
        reply = _chunked(endpoint, [b" " * (1 << 20)] * 16)
        assert b" 413 " in reply.split(b"\r\n")[0]


def test_an_engine_that_fails_is_the_server_s_fault(identity: Bundle) -> None:
    class Broken(NumpyIdentity):
        def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            if len(feeds["x"]) > 2:
                raise GraphError("it does not take three rows")
            return super().run(feeds)

    model = ServedModel("m", "1", identity, Broken(identity))
    with running([model], settings()) as endpoint:
        body, headers = message(identity, rows=3)
        reply = endpoint.send("POST", "/v2/models/m/infer", body, headers)
        assert reply.status == 500
        said = json.loads(reply.body)["error"]
        assert "an error of the server itself (GraphError)" in said
        assert reply.headers["x-request-id"] in said
        assert b'code="500",model="m"' in endpoint.send("GET", "/metrics").body


def _chunked(endpoint: Running, parts: list[bytes]) -> bytes:
    with socket.create_connection(("127.0.0.1", endpoint.port), 10) as connection:
        connection.sendall(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for part in parts:
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        connection.sendall(b"0\r\n\r\n")
        return _read_all(connection)


def _read_all(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(65536):
        found += part
        if b'"}' in found:
            return found
    return found


def test_a_body_that_does_not_come(identity: Bundle) -> None:
    with (
        slow_endpoint(identity, body_seconds=0.2) as (endpoint, _),
        socket.create_connection(("127.0.0.1", endpoint.port), 10) as connection,
    ):
        connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nContent-Length: 99\r\n\r\n{")
        answer = _read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body was not here after 0.2 s" in answer
        assert connection.recv(1) == b""


def test_a_head_that_does_not_come(identity: Bundle) -> None:
    with slow_endpoint(identity, head_seconds=0.2) as (endpoint, _):
        for start in (b"", b"POST /v2/models/slow/infer HT", b"GET / HTTP/1.1\r\nHost: h\r\n"):
            with socket.create_connection(("127.0.0.1", endpoint.port), 10) as connection:
                connection.sendall(start)
                answer = _read_all(connection)
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert b"no whole request came in 0.2 s" in answer


def test_a_head_without_end(live: Running) -> None:
    with socket.create_connection(("127.0.0.1", live.port), 10) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\n")
        answer = b""
        try:
            for number in range(64):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 4000))
            answer = _read_all(connection)
        except (BrokenPipeError, ConnectionResetError):
            answer = _read_all(connection)
        assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_what_is_no_http(live: Running, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", live.port), 10) as connection:
        connection.sendall(line)
        answer = _read_all(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"this is not HTTP/1.1" in answer


def test_too_many_requests_wait(identity: Bundle) -> None:
    with slow_endpoint(identity, queue=1) as (endpoint, engine):
        engine.go.clear()
        found: list[int] = []
        batcher = next(iter(endpoint.server.endpoint.catalog)).batcher
        first = post(endpoint, identity, found)
        wait_until(lambda: batcher._free == 0)
        second = post(endpoint, identity, found)
        wait_until(lambda: batcher.queue_length == 1)
        body, headers = message(identity)
        reply = endpoint.send("POST", "/v2/models/slow/infer", body, headers)
        assert reply.status == 429
        assert "retry-after" in reply.headers
        assert "no more are taken" in json.loads(reply.body)["error"]
        engine.go.set()
        first.join()
        second.join()
        assert found == [200, 200]


def test_too_many_requests_at_a_time(identity: Bundle) -> None:
    with slow_endpoint(identity, requests=1) as (endpoint, engine):
        engine.go.clear()
        found: list[int] = []
        first = post(endpoint, identity, found)
        batcher = next(iter(endpoint.server.endpoint.catalog)).batcher
        wait_until(lambda: batcher._free == 0)
        body, headers = message(identity)
        reply = endpoint.send("POST", "/v2/models/slow/infer", body, headers)
        assert reply.status == 503
        assert "1 requests are in progress" in json.loads(reply.body)["error"]
        engine.go.set()
        first.join()
        assert found == [200]


def test_a_result_that_does_not_come(identity: Bundle) -> None:
    with slow_endpoint(identity, request_seconds=0.2) as (endpoint, engine):
        engine.go.clear()
        body, headers = message(identity)
        reply = endpoint.send("POST", "/v2/models/slow/infer", body, headers)
        assert reply.status == 504
        assert "no result after 0.2 s" in json.loads(reply.body)["error"]
        engine.go.set()
        assert endpoint.send("POST", "/v2/models/slow/infer", body, headers).status == 200


def test_a_client_sets_its_own_patience(identity: Bundle) -> None:
    with slow_endpoint(identity) as (endpoint, engine):
        engine.go.clear()
        tensor = {"name": "x", "shape": [1, 1, 8], "datatype": "FP32", "data": [0.0] * 8}
        content = {"inputs": [tensor], "parameters": {"timeout": 100_000}}
        status, answer = endpoint.infer("slow", content)
        assert (status, "no result after 0.1 s" in answer["error"]) == (504, True)


def test_a_token(identity: Bundle) -> None:
    model = ServedModel("m", "1", identity, open_engine(identity, "ort-cpu", threads=1))
    with running([model], Settings(port=0, drain_seconds=0.0, token="s3cret")) as endpoint:
        assert endpoint.send("GET", "/v2/health/ready").status == 200
        for path in ("/v2", "/metrics", "/v2/models/m"):
            reply = endpoint.send("GET", path)
            assert reply.status == 401
            assert "a token is needed" in json.loads(reply.body)["error"]
            assert reply.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer wrong", "Bearer ", "s3cret", "Basic s3cret", "Bearer s3crét"):
            reply = endpoint.send("GET", "/v2", headers={"Authorization": wrong})
            assert (reply.status, b"not the one" in reply.body) == (401, True)
        good = {"Authorization": "Bearer s3cret"}
        assert endpoint.send("GET", "/v2", headers=good).status == 200
        body, headers = message(identity)
        reply = endpoint.send("POST", "/v2/models/m/infer", body, {**headers, **good})
        assert reply.status == 200


def test_tls(identity: Bundle, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    certificate.private_key_pem.write_to_path(key)
    for part in certificate.cert_chain_pems:
        part.write_to_path(chain, append=True)
    model = ServedModel("m", "1", identity, open_engine(identity, "ort-cpu", threads=1))
    where = Settings(port=0, drain_seconds=0.0, tls_certificate=chain, tls_key=key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with running([model], where) as endpoint:
        url = f"https://127.0.0.1:{endpoint.port}/v2/health/ready"
        assert endpoint.server.url == url.partition("/v2")[0]
        with urllib.request.urlopen(url, context=context, timeout=10) as response:
            assert response.status == 200


def test_the_limit_is_made_from_the_axes(tmp_path: Path) -> None:
    small = identity_bundle(tmp_path / "small", "float32")
    wide = identity_bundle(tmp_path / "wide", "float32", shape=("batch", "seq", 1 << 20), cases=())
    assert body_bytes_for([small]) == 16 << 20
    assert body_bytes_for([small, wide]) > 8 * 16 * 4 << 20


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"port": 65536}, "port 65536 does not exist"),
        ({"tls_key": Path("key.pem")}, "give both files"),
        ({"tls_key": Path("/no/key.pem"), "tls_certificate": Path("/no/c.pem")}, "does not exist"),
    ],
)
def test_wrong_settings(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Settings(**wrong)  # type: ignore[arg-type]


def test_a_limit_of_nothing() -> None:
    with pytest.raises(UsageError, match="the limit requests is 0: give more than 0"):
        Limits(requests=0)
