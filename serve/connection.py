"""A connection that cannot be held open, or filled up, by a client that sends no whole request.

uvicorn reads a request's head for as long, and as far, as the client likes; the body is the
application's to bound.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from attnport.serve.settings import Limits

MAX_HEAD_BYTES = 1 << 16


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection, with a limit to a head's length and to a request's arriving."""

    limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part: Literal["none", "head", "body"] = "none"  # of a request, that is arriving
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_limits(cls, limits: Limits) -> type[GuardedConnection]:
        """The class for one endpoint: uvicorn takes a class."""
        return type("GuardedConnection", (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._part
        super().data_received(data)
        if before == self._part == "head" and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._answer(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the request's head is longer than {MAX_HEAD_BYTES} bytes: send fewer headers",
                )

    def on_message_begin(self) -> None:
        self._part, self._head_bytes = "head", 0
        self._wait(self.limits.head_seconds)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._part = "body"
        # The application answers a slow body long before this, with a sentence.
        self._wait(2 * self.limits.body_seconds + self.limits.head_seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._part = "none"
        self._stop_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._answer(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1: send a valid request")

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self._part != "body":
            self._answer(
                HTTPStatus.REQUEST_TIMEOUT,
                f"no whole request came in {self.limits.head_seconds:g} s: send it faster",
            )
        else:
            self.transport.close()

    def _answer(self, status: HTTPStatus, sentence: str) -> None:
        body = json.dumps({"error": sentence}).encode("ascii")
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
