"""Carries requests over HTTP, with the standard library: a machine that verifies needs no more."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from attnport.errors import EngineUnavailableError, UsageError
from attnport.serve.oip.client import Reply

_ATTEMPTS = 2


class HttpTransport:
    """One connection that is kept, and made again when the endpoint closed it.

    Args:
        url: Such as "http://127.0.0.1:8000"; what stands behind the host is put before each path.
        token: A bearer token.
        timeout_seconds: How long a response may take.

    Raises:
        UsageError: If the URL is none.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout_seconds: float = 300.0
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise UsageError(f"{url!r} is no URL of an endpoint: give http://HOST:PORT")
        self._prefix = parts.path.rstrip("/")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            # It trusts what the system trusts; SSL_CERT_FILE names another authority.
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout_seconds, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(
                parts.hostname, port, timeout=timeout_seconds
            )
        self._url = url
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Sends one request.

        Raises:
            EngineUnavailableError: If nobody answers there.
        """
        with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return self._send(method, path, headers, body)
                except (OSError, http.client.HTTPException) as err:
                    self._connection.close()
                    # A connection that was kept may have been closed meanwhile; a timeout is none.
                    if attempt == _ATTEMPTS or isinstance(err, TimeoutError):
                        reason = str(err) or type(err).__name__
                        raise EngineUnavailableError(
                            f"{self._url} does not answer ({reason}): start the endpoint, or give "
                            "its URL"
                        ) from err
        raise AssertionError("unreachable")

    def close(self) -> None:
        self._connection.close()

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        all_headers = {**headers, **self._headers}
        self._connection.request(method, self._prefix + path, body or None, all_headers)
        response = self._connection.getresponse()
        content = response.read()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, named, content)
