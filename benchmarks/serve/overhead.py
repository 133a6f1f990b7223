"""What the endpoint adds to `engine.run`, and what the check of the inputs costs."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.export.bundle import Bundle
from attnport.serve.oip.exchange import write_request


def percentiles_us(run: Callable[[], object], times: int) -> dict[str, float]:
    """Of the wall time of a call, after a tenth of the calls were made unmeasured."""
    found = []
    for _ in range(times // 10):
        run()
    for _ in range(times):
        start = time.perf_counter_ns()
        run()
        found.append((time.perf_counter_ns() - start) / 1e3)
    return {f"p{p}": float(np.percentile(found, p)) for p in (50, 90, 99)}


def check_us(
    bundle: Bundle, feeds: Mapping[str, np.ndarray], times: int = 20_000
) -> dict[str, float]:
    """Of checking names, dtypes, ranks and ranges."""
    check = compile_check(bundle.manifest.inputs, bundle.axes)
    return percentiles_us(lambda: check(feeds), times)


def engine_us(engine: Engine, feeds: Mapping[str, np.ndarray], times: int) -> dict[str, float]:
    """Of `engine.run`, the check included."""
    return percentiles_us(lambda: engine.run(feeds), times)


def endpoint_us(
    port: int, model: str, bundle: Bundle, feeds: Mapping[str, np.ndarray], times: int
) -> dict[str, float]:
    """Of one request after the other on one connection, as a client sees it."""
    message = write_request(feeds, bundle.manifest.inputs, bundle.manifest.outputs)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    path, body, headers = f"/v2/models/{model}/infer", message.body, message.headers

    def ask() -> None:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"the endpoint answers {response.status}")

    try:
        return percentiles_us(ask, times)
    finally:
        connection.close()
