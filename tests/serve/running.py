"""An endpoint that listens on a free port of 127.0.0.1 while a block runs."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnport.serve.app import Endpoint
from attnport.serve.oip.client import Reply
from attnport.serve.served_model import ServedModel
from attnport.serve.server import EndpointServer
from attnport.serve.settings import Settings

PATIENCE_SECONDS = 30.0


@dataclass
class Running:
    """A live endpoint.

    Attributes:
        port: Where it listens.
        server: Its server.
    """

    port: int
    server: EndpointServer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, named, response.read())
        finally:
            connection.close()

    def infer(
        self, model: str, content: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """A request in JSON and what came back."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        reply = self.send("POST", f"/v2/models/{model}/infer", body, headers)
        return reply.status, json.loads(reply.body)


@contextmanager
def running(
    models: list[ServedModel], settings: Settings | None = None, *, ready: bool = True
) -> Iterator[Running]:
    """Serves models until the block ends; with `ready`, waits until all of them are."""
    settings = settings or Settings(port=0, drain_seconds=0.0)
    endpoint = Endpoint(models, settings)
    server = EndpointServer(endpoint, settings, lambda line: None)
    thread = threading.Thread(target=server.run, name="endpoint")
    thread.start()
    try:
        wait_until(lambda: server.started)
        if ready:
            wait_until(lambda: endpoint.is_ready)
        yield Running(server.port, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the server did not stop"


def wait_until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
