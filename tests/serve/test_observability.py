"""What an operator sees: metrics, logs, request ids."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from tests.serve.running import Running

from attnport.serve.logs import LOGGER, log_as_json

TENSOR = {"name": "x", "shape": [2, 1, 8], "datatype": "FP32", "data": [0.0] * 16}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    before = [
        (logging.getLogger(n), vars(logging.getLogger(n)).copy())
        for n in ("attnport.serve", "uvicorn")
    ]
    stream = io.StringIO()
    log_as_json(stream)
    yield stream
    for logger, state in before:
        vars(logger).update(state)
        logger.manager._clear_cache()  # type: ignore[attr-defined]


def metric(live: Running, name: str) -> float:
    for line in live.send("GET", "/metrics").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    return 0.0


def test_metrics_count_what_happened(live: Running) -> None:
    labels = 'model="identity-float32",version="1"'
    names = {
        "good": f'attnport_requests_total{{code="200",{labels}}}',
        "wrong": f'attnport_errors_total{{code="400",{labels}}}',
        "queue": f"attnport_queue_seconds_count{{{labels}}}",
        "compute": f"attnport_compute_seconds_sum{{{labels}}}",
        "rows": f"attnport_batch_rows_sum{{{labels}}}",
    }
    before = {key: metric(live, name) for key, name in names.items()}
    live.infer("identity-float32", {"inputs": [TENSOR]})
    live.infer("identity-float32", {"inputs": []})
    after = {key: metric(live, name) - before[key] for key, name in names.items()}
    assert (after["good"], after["wrong"], after["queue"], after["rows"]) == (1, 1, 1, 2)
    assert after["compute"] > 0
    assert metric(live, "attnport_requests_in_progress") == 0


def test_each_request_is_one_line_with_its_id(live: Running, log: io.StringIO) -> None:
    body = json.dumps({"inputs": [TENSOR]}).encode()
    path = "/v2/models/identity-float32/infer"
    reply = live.send("POST", path, body, {"X-Request-Id": "from-me.1"})
    assert reply.headers["x-request-id"] == "from-me.1"
    wrong = live.send("POST", path, b"{}", {"X-Request-Id": "no\tgood"})
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["request_id"] for line in lines] == ["from-me.1", wrong.headers["x-request-id"]]
    good, bad = lines
    assert good["event"] == "request"
    assert (good["model"], good["version"], good["status"]) == ("identity-float32", "1", 200)
    assert (good["batch_rows"], good["batch_requests"]) == (2, 1)
    assert good["total_us"] >= good["compute_us"] > 0
    assert (bad["status"], "no list of inputs" in bad["error"]) == (400, True)
    assert len(bad["request_id"]) == 32


def test_probes_are_not_logged(live: Running, log: io.StringIO) -> None:
    assert live.send("GET", "/v2/health/ready").status == 200
    assert log.getvalue() == ""
    assert LOGGER.handlers
