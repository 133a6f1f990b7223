"""What can be set about the endpoint; every limit has its status and its sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import Bundle

_SMALLEST_LIMIT_BYTES = 16 << 20
_ROOM_FOR_JSON_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one client may ask of the endpoint.

    Attributes:
        body_bytes: The largest body, after decompression, too; 413.
        json_bytes: The largest JSON part; 413.
        requests: How many inference requests may be in progress; 503.
        queue: How many may wait for one model; 429.
        head_seconds: How long a request's head may take; the connection is closed.
        body_seconds: How long its body may take; 408.
        request_seconds: How long it may wait and compute; 504.
    """

    body_bytes: int = _SMALLEST_LIMIT_BYTES
    json_bytes: int = _SMALLEST_LIMIT_BYTES
    requests: int = 256
    queue: int = 128
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    request_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UsageError(f"the limit {name} is {value}: give more than 0")


@dataclass(frozen=True)
class Settings:
    """Where and how the endpoint answers.

    Attributes:
        host: The address it listens on.
        port: The port; 0 takes a free one.
        token: What a client must send as bearer token; None asks for none.
        tls_certificate: PEM file of the certificate chain; None speaks plain HTTP.
        tls_key: PEM file of its key.
        limits: What a client may ask.
        drain_seconds: After a signal to stop, how long new requests are still taken while the
            health check says not ready, so that a load balancer can turn away.
        stop_seconds: How long the accepted ones may then take.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    limits: Limits = Limits()
    drain_seconds: float = 1.0
    stop_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(
                f"port {self.port} does not exist: give 1 to 65535, or 0 for a free one"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError("TLS takes a certificate and its key: give both files")
        for file in (self.tls_certificate, self.tls_key):
            if file is not None and not file.is_file():
                raise UsageError(f"{file} does not exist: give a PEM file")


def body_bytes_for(bundles: Iterable[Bundle]) -> int:
    """A limit that lets the largest request of every bundle through, sent as bytes."""
    return max([_SMALLEST_LIMIT_BYTES, *map(_largest_request_bytes, bundles)])


def _largest_request_bytes(bundle: Bundle) -> int:
    axes = bundle.axes
    tensors = (
        numpy_dtype(spec.dtype).itemsize * math.prod(_largest(dim, axes) for dim in spec.shape)
        for spec in bundle.manifest.inputs
    )
    return sum(tensors) + _ROOM_FOR_JSON_BYTES


def _largest(dim: int | str, axes: dict[str, Axis]) -> int:
    if isinstance(dim, int):
        return dim
    return axes[dim].max if dim in axes else 1
