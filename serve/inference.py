"""The inference route: body -> arrays -> engine -> body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from attnport.serve.batcher import Computed
from attnport.serve.body import compressed, read_body, response_encoding
from attnport.serve.catalog import Catalog
from attnport.serve.gate import Trace, status_of
from attnport.serve.metrics import Metrics
from attnport.serve.oip.exchange import (
    HEADER_LENGTH,
    Message,
    read_request,
    split_body,
    wanted_outputs,
    write_response,
)
from attnport.serve.oip.request import InferRequest
from attnport.serve.refusal import RefusedError
from attnport.serve.served_model import ServedModel
from attnport.serve.settings import Limits

_WORTH_A_THREAD_BYTES = 1 << 15


class Inference:
    """Answers POST /v2/models/NAME[/versions/VERSION]/infer.

    Args:
        catalog: The models.
        limits: What a client may ask.
        metrics: What is counted.
    """

    def __init__(self, catalog: Catalog, limits: Limits, metrics: Metrics) -> None:
        self._catalog, self._limits, self._metrics = catalog, limits, metrics
        self._in_progress = 0

    async def __call__(self, request: Request) -> Response:
        trace: Trace = request.scope["attnport.trace"]
        model = self._catalog.find(request.path_params["name"], request.path_params.get("version"))
        trace.facts.update(model=model.name, version=model.version)
        status = 500
        self._in_progress += 1
        self._metrics.in_progress.set(self._in_progress)
        try:
            response = await self._answer(request, model, trace)
            status = response.status_code
            return response
        except Exception as err:
            status = status_of(err)
            raise
        finally:
            self._in_progress -= 1
            self._metrics.in_progress.set(self._in_progress)
            self._metrics.queue_length.labels(model.name, model.version).set(
                model.batcher.queue_length
            )
            if not trace.internal:
                self._metrics.count(model.name, model.version, status)

    async def _answer(self, request: Request, model: ServedModel, trace: Trace) -> Response:
        self._require_room()
        if not (model.ready or trace.internal):
            raise RefusedError(503, f"model {model.name!r} is not ready: {model.reason}")
        headers = request.headers
        body = await read_body(request.receive, headers, self._limits)
        head = split_body(body, headers.get(HEADER_LENGTH), self._limits.json_bytes)
        asked, feeds = read_request(body, head, model.inputs)
        wanted_outputs(asked, model.outputs)  # before anything is computed for it
        checked = model.check(feeds)
        computed = await self._compute(model, asked, checked)
        self._observe(model, computed, trace)
        message = write_response(model.name, model.version, asked, computed.outputs, model.outputs)
        return await _response(message, headers.get("accept-encoding", ""))

    def _require_room(self) -> None:
        if self._in_progress > self._limits.requests:
            raise RefusedError(
                503,
                f"{self._limits.requests} requests are in progress, and no more are taken: send it "
                "again later",
            )

    async def _compute(
        self, model: ServedModel, asked: InferRequest, feeds: Mapping[str, np.ndarray]
    ) -> Computed:
        seconds = min(self._limits.request_seconds, asked.timeout_seconds or float("inf"))
        try:
            async with asyncio.timeout(seconds):
                return await model.batcher.submit(feeds)
        except TimeoutError as err:
            raise RefusedError(
                504,
                f"there was no result after {seconds:g} s, queueing included: send fewer requests "
                "at a time, or allow more time",
            ) from err

    def _observe(self, model: ServedModel, computed: Computed, trace: Trace) -> None:
        trace.facts.update(
            queue_us=round(computed.queue_seconds * 1e6),
            compute_us=round(computed.compute_seconds * 1e6),
            batch_rows=computed.batch_rows,
            batch_requests=computed.batch_requests,
        )
        if trace.internal:
            return
        labels = model.name, model.version
        self._metrics.queue_seconds.labels(*labels).observe(computed.queue_seconds)
        self._metrics.compute_seconds.labels(*labels).observe(computed.compute_seconds)
        self._metrics.batch_rows.labels(*labels).observe(computed.batch_rows)


async def _response(message: Message, accepted: str) -> Response:
    body, headers = message.body, dict(message.headers)
    encoding = response_encoding(accepted)
    if encoding is not None:
        headers["content-encoding"] = encoding
        if len(body) < _WORTH_A_THREAD_BYTES:
            body = compressed(body, encoding)
        else:
            body = await asyncio.to_thread(compressed, body, encoding)
    return Response(body, headers=headers)
