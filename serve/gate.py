"""What every request passes on its way in and out: its id, the token, the errors, the log.

Plain ASGI, not Starlette's BaseHTTPMiddleware, which copies bodies through a queue.
"""

from __future__ import annotations

import hmac
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attnport.errors import InputError
from attnport.serve.logs import LOGGER
from attnport.serve.refusal import ClientGoneError, RefusedError

CLIENT_LEFT = 499  # nginx's, for the log and the metrics: nobody is there to read it
_OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_RETRY_AFTER = {429: b"1", 503: b"5"}


@dataclass
class Trace:
    """What is known of one request when it is logged.

    Attributes:
        request_id: From the header X-Request-Id, or made here; it comes back in the response.
        internal: Whether it comes from this process, which proves its models before they are
            ready.
        facts: What the handler adds.
    """

    request_id: str
    internal: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class Gate:
    """The outermost layer of the application.

    Args:
        app: What is inside.
        token: The bearer token; None lets everyone in.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else f"Bearer {token}".encode()
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        trace = Trace(_request_id(headers), bool(scope.get("attnport.internal")))
        scope["attnport.trace"] = trace
        answer = _Answer(send, trace.request_id, self)
        try:
            self._require_token(scope, headers, trace)
            scope["app"] = self  # so that the router raises what it refuses
            await self._app(scope, receive, answer)
        except ClientGoneError:
            answer.status = CLIENT_LEFT
        except Exception as err:
            await answer.refuse(_refusal(err, scope, trace))
        _log(scope, trace, answer.status, time.perf_counter() - started)

    def _require_token(self, scope: Scope, headers: dict[bytes, bytes], trace: Trace) -> None:
        if self._token is None or trace.internal or scope["path"] in _OPEN_PATHS:
            return
        given = headers.get(b"authorization")
        if given is None:
            raise RefusedError(
                401, "a token is needed: send the header `Authorization: Bearer TOKEN`"
            )
        if not hmac.compare_digest(given, self._token):
            raise RefusedError(
                401, "the token in the header Authorization is not the one asked for"
            )


class _Answer:
    """The way out: the request's id goes with every response, and errors are JSON."""

    def __init__(self, send: Send, request_id: str, gate: Gate) -> None:
        self._send = send
        self._gate = gate
        self._id = request_id.encode("ascii")
        self._started = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id)]
            if self._gate.draining:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    async def refuse(self, refusal: RefusedError) -> None:
        if self._started:
            raise refusal  # half a response is out: only closing the connection is left
        body = json.dumps({"error": str(refusal)}).encode("ascii")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode("ascii")),
        ]
        if refusal.status in _RETRY_AFTER:
            headers.append((b"retry-after", _RETRY_AFTER[refusal.status]))
        if refusal.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refusal.closes and not self._gate.draining:
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await self(start)
        await self._send({"type": "http.response.body", "body": body})


def status_of(error: Exception) -> int:
    """The HTTP status that an error becomes."""
    if isinstance(error, RefusedError):
        return error.status
    if isinstance(error, ClientGoneError):
        return CLIENT_LEFT
    if isinstance(error, InputError):
        return 400
    return 503 if isinstance(error, MemoryError) else 500


def _refusal(error: Exception, scope: Scope, trace: Trace) -> RefusedError:
    if isinstance(error, HTTPException):
        error = _no_route(error.status_code, scope)
    trace.facts["error"] = str(error)[:500]
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, InputError):
        return RefusedError(status_of(error), str(error))
    if isinstance(error, MemoryError):
        return RefusedError(
            status_of(error),
            "the server has not enough memory for this request now: try again later",
        )
    LOGGER.error("internal error", exc_info=error, extra={"request_id": trace.request_id})
    return RefusedError(
        status_of(error),
        f"an error of the server itself ({type(error).__name__}): its log tells more under the "
        f"request id {trace.request_id}",
    )


def _no_route(status: int, scope: Scope) -> RefusedError:
    path = scope["path"][:200]
    if status == 405:
        method = scope["method"][:20]
        return RefusedError(405, f"{path} does not take {method}: infer takes POST, all else GET")
    return RefusedError(
        404, f"there is nothing at {path}: the protocol's paths are such as /v2/models/NAME/infer"
    )


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _log(scope: Scope, trace: Trace, status: int, seconds: float) -> None:
    if scope["path"] in _OPEN_PATHS or trace.internal:
        return  # probes come every second
    LOGGER.info(
        "request",
        extra={
            "request_id": trace.request_id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "total_us": round(seconds * 1e6),
            **trace.facts,
        },
    )
