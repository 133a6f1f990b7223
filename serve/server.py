"""The process that listens: uvicorn with our connections, readiness and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from attnport.errors import UsageError
from attnport.serve.app import Endpoint
from attnport.serve.connection import GuardedConnection
from attnport.serve.logs import LOGGER
from attnport.serve.readiness import make_ready
from attnport.serve.settings import Settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Tell = Callable[[str], None]


class EndpointServer(uvicorn.Server):
    """Serves one endpoint until a signal comes.

    Args:
        endpoint: The application.
        settings: Where and how.
        tell: Called with one line when it listens, and one when the models are ready or not.
    """

    def __init__(self, endpoint: Endpoint, settings: Settings, tell: Tell) -> None:
        super().__init__(_config(endpoint, settings))
        self.endpoint, self.settings, self._tell = endpoint, settings, tell
        self._getting_ready: asyncio.Task[None] | None = None
        self.port = settings.port

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await super().startup(list(sockets) if sockets is not None else None)
        self.port = self.servers[0].sockets[0].getsockname()[1]
        LOGGER.info("listening", extra={"host": self.settings.host, "port": self.port})
        self._tell(f"listening on {self.url}")
        self._getting_ready = asyncio.create_task(self._get_ready())

    @property
    def url(self) -> str:
        scheme = "http" if self.settings.tls_certificate is None else "https"
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{scheme}://{host}:{self.port}"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets clients turn away first, then closes, and answers what was accepted."""
        LOGGER.info("stopping", extra={"drain_seconds": self.settings.drain_seconds})
        # From here on health says not ready, and every response closes its connection.
        self.endpoint.app.draining = True
        if self._getting_ready is not None:
            self._getting_ready.cancel()
        await self._drain()
        await super().shutdown(sockets)
        await self.endpoint.close()
        LOGGER.info("stopped")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's, the signal is not raised again: a stop that was asked for exits 0."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # in a thread: whoever made it stops it
            for number in _SIGNALS:
                loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)

    async def _drain(self) -> None:
        end = asyncio.get_running_loop().time() + self.settings.drain_seconds
        while asyncio.get_running_loop().time() < end and not self.force_exit:
            await asyncio.sleep(0.02)

    async def _get_ready(self) -> None:
        await make_ready(self.endpoint)
        for model in self.endpoint.catalog:
            where = f"{self.url}/v2/models/{model.name}/versions/{model.version}"
            state = "ready" if model.ready else f"not ready ({model.reason})"
            self._tell(f"{state}: {where}")


def serve(endpoint: Endpoint, settings: Settings, tell: Tell) -> None:
    """Listens until SIGINT or SIGTERM; what was accepted by then is answered.

    Args:
        endpoint: The application.
        settings: Where and how.
        tell: Called with lines for the person at the terminal.

    Raises:
        UsageError: If the address cannot be listened on, or the TLS files cannot be used.
    """
    listener = _listen(settings)
    try:
        server = EndpointServer(endpoint, settings, tell)
        server.run(sockets=[listener])
    finally:
        listener.close()


def _config(endpoint: Endpoint, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        endpoint.app,
        host=settings.host,
        port=settings.port,
        http=GuardedConnection.with_limits(settings.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=int(settings.stop_seconds) or None,
    )
    try:
        config.load()
    except (OSError, ValueError) as err:  # ssl's errors are OSErrors
        raise UsageError(
            f"TLS cannot be set up with {settings.tls_certificate} and {settings.tls_key} ({err}): "
            "give a PEM certificate and its key"
        ) from err
    return config


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as err:
        listener.close()
        raise UsageError(
            f"{settings.host} port {settings.port} cannot be listened on ({err}): give another "
            "--host or --port"
        ) from err
    return listener
