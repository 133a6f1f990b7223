"""Before a model is ready, its bundle's cases go through the endpoint's own path.

Each case is sent to the application as an HTTP request would be: it is read, queued, computed and
written back like one, and what comes out is judged by the parity bound. Where requests are to be
joined, it is also proved that the rows of a batch do not influence each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

import numpy as np

from attnport.engines.engine import Engine
from attnport.errors import AttnportError
from attnport.export.bundle import Bundle
from attnport.serve.app import Endpoint
from attnport.serve.batch_axis import BatchAxis
from attnport.serve.logs import LOGGER
from attnport.serve.oip.client import Reply
from attnport.serve.oip_engine import OipEngine
from attnport.serve.prove_endpoint import failures, prove_endpoint
from attnport.serve.served_model import ServedModel
from attnport.validate.parity import check_parity

_CASES_BY_ROWS = 2  # of those with several rows, the smallest: each takes a run for every row


async def make_ready(endpoint: Endpoint) -> None:
    """Proves each model and opens it to clients; one that fails stays closed and says why."""
    for model in endpoint.catalog:
        labels = {"model": model.name, "version": model.version}
        endpoint.metrics.ready.labels(model.name, model.version).set(0)
        try:
            model.reason = await asyncio.to_thread(
                _why_not_ready, endpoint, model, asyncio.get_running_loop()
            )
        except AttnportError as err:
            model.reason = str(err)
        except Exception as err:
            model.reason = f"its cases could not be run ({type(err).__name__}: {err})"
            LOGGER.error("internal error", exc_info=err, extra=labels)
        model.ready = not model.reason
        endpoint.metrics.ready.labels(model.name, model.version).set(int(model.ready))
        if model.ready:
            facts = {"cases": len(model.bundle.manifest.cases), "unbatched": model.unbatched}
            LOGGER.info("ready", extra={**labels, "engine": model.engine.kind, **facts})
        else:
            LOGGER.error("not ready", extra={**labels, "reason": model.reason})


def _why_not_ready(endpoint: Endpoint, model: ServedModel, loop: asyncio.AbstractEventLoop) -> str:
    if not model.bundle.manifest.cases:
        return "" if model.unproved else "its bundle holds no case: export it with cases"
    transport = InProcess(endpoint, loop)
    engine = OipEngine(model.bundle, transport, model=model.name, version=model.version)
    why = failures(prove_endpoint(model.bundle, engine).findings)
    if why or model.batch_axis is None:
        return why
    return why_rows_mix(model.bundle, model.engine, model.batch_axis)


def why_rows_mix(bundle: Bundle, engine: Engine, axis: BatchAxis) -> str:
    """Why requests must not be joined; empty where it is proved that they may.

    A case of several rows is computed row by row, and held to the bound of the whole.
    """
    smallest = max(axis.axis.min, 1)
    cases = [
        record
        for record in bundle.manifest.cases
        if record.sizes.get(axis.axis.name, 1) >= 2 * smallest
        and record.sizes[axis.axis.name] % smallest == 0
    ]
    if not cases and axis.axis.max >= 2 * smallest:
        return (
            "no case has several rows, so nothing proves that they may share a batch: export it "
            "with larger cases, or serve it with --no-batching"
        )
    cases.sort(key=lambda record: record.sizes[axis.axis.name])
    by_rows = RowByRow(engine, axis, smallest)
    for record in cases[:_CASES_BY_ROWS]:
        for finding in check_parity(by_rows, bundle, record.name):
            if finding.status == "failed":
                return (
                    f"computed row by row, case {finding.case} is another one ({finding.message}): "
                    "the rows of a batch influence each other, so serve it with --no-batching"
                )
    return ""


class RowByRow(Engine):
    """An engine that is given the rows of a batch one at a time.

    Args:
        engine: What computes.
        axis: The batch axis.
        rows: How many rows are one: the least that the axis takes.
    """

    def __init__(self, engine: Engine, axis: BatchAxis, rows: int) -> None:
        self.kind, self.inputs, self.outputs = engine.kind, engine.inputs, engine.outputs
        self._engine, self._axis, self._rows = engine, axis, rows

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        parts = [
            self._engine.run(self._part(feeds, start))
            for start in range(0, self._axis.rows(feeds), self._rows)
        ]
        return {
            name: np.concatenate([part[name] for part in parts], axis=at)
            for name, at in self._axis.outputs.items()
        }

    def placement(self) -> dict[str, int]:
        return self._engine.placement()

    def _part(self, feeds: Mapping[str, np.ndarray], start: int) -> dict[str, np.ndarray]:
        rows = np.arange(start, start + self._rows)
        return {
            name: feeds[name] if at is None else np.take(feeds[name], rows, axis=at)
            for name, at in self._axis.inputs.items()
        }


class InProcess:
    """Carries requests to the application in this process, from a thread beside its loop.

    Args:
        endpoint: The application.
        loop: The event loop that it runs in.
    """

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._app, self._loop = endpoint.app, loop

    def __call__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        call = self._call(method, path, headers, body)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "root_path": "",
            "query_string": b"",
            "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()],
            # No client can set this: uvicorn makes the scope of a request from outside.
            "attnport.internal": True,
        }
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start, *parts = sent
        names = {k.decode("latin-1"): v.decode("latin-1") for k, v in start["headers"]}
        return Reply(start["status"], names, b"".join(part.get("body", b"") for part in parts))
