"""Reads the body of a request: so much of it, so long, and decompressed no further than that.

A connection is not closed on a client that still sends: it would see a reset, and not the sentence.
uvicorn throws away what is left of the body, and `connection` bounds for how long.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

from starlette.types import Receive

from attnport.serve.refusal import ClientGoneError, RefusedError, bad_request
from attnport.serve.settings import Limits

# zlib's window for each Content-Encoding; "deflate" is the zlib format (RFC 9110, 8.4.1.2).
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_CHUNK_BYTES = 1 << 16
_WORTH_A_THREAD_BYTES = 1 << 15


async def read_body(receive: Receive, headers: Mapping[str, str], limits: Limits) -> bytes:
    """The whole body, decompressed.

    Args:
        receive: Of the ASGI request.
        headers: Of the request, by lower-case name.
        limits: How large, and how long.

    Raises:
        RefusedError: 413 if it is too large, 408 if it takes too long, 415 if its encoding is unknown,
            400 if it cannot be decompressed.
        ClientGoneError: If the client left before the end.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (*_WINDOWS, "identity", ""):
        raise RefusedError(
            415,
            f"the content encoding {encoding[:40]!r} is not read here: send gzip, deflate or none",
        )
    _refuse_announced(headers.get("content-length"), limits.body_bytes)
    try:
        async with asyncio.timeout(limits.body_seconds):
            raw = await _gather(receive, limits.body_bytes)
    except TimeoutError as err:
        raise RefusedError(
            408,
            f"the body was not here after {limits.body_seconds:g} s: send it faster, or in smaller "
            "requests",
            closes=True,
        ) from err
    if encoding not in _WINDOWS:
        return raw
    if len(raw) < _WORTH_A_THREAD_BYTES:
        return decompressed(raw, encoding, limits.body_bytes)
    return await asyncio.to_thread(decompressed, raw, encoding, limits.body_bytes)


def decompressed(raw: bytes, encoding: str, limit_bytes: int) -> bytes:
    """What was compressed; it never takes more memory than the limit.

    Raises:
        RefusedError: 400 if it is not whole or of another format, 413 if it is larger.
    """
    unpack = zlib.decompressobj(_WINDOWS[encoding])
    parts = []
    total = 0
    left = raw
    try:
        while not unpack.eof:
            part = unpack.decompress(left, _CHUNK_BYTES)
            left = unpack.unconsumed_tail
            if not part and not left and not unpack.eof:
                raise bad_request(
                    f"the {encoding} data of the body ends too early: send all of it"
                )
            total += len(part)
            if total > limit_bytes:
                raise _too_large(f"more than {limit_bytes} bytes decompressed", limit_bytes)
            parts.append(part)
    except zlib.error as err:
        raise bad_request(f"the body is not {encoding} data ({err}): compress it again") from err
    if unpack.unused_data:
        raise bad_request(
            f"{len(unpack.unused_data)} bytes follow the {encoding} data of the body: send one "
            "stream, and nothing after it"
        )
    return b"".join(parts)


def compressed(body: bytes, encoding: str) -> bytes:
    """Compressed fast rather than well: tensors of floats hardly shrink."""
    pack = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return pack.compress(body) + pack.flush()


def response_encoding(accepted: str) -> str | None:
    """The first encoding of an Accept-Encoding header that is written here; None for none.

    >>> response_encoding("br, gzip;q=0.5, deflate;q=0")
    'gzip'
    """
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if name.strip() in _WINDOWS and weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00"):
            return name.strip()
    return None


async def _gather(receive: Receive, limit_bytes: int) -> bytes:
    parts = []
    total = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client left before its request was whole")
        part = message.get("body", b"")
        total += len(part)
        if total > limit_bytes:
            raise _too_large(f"more than {limit_bytes} bytes", limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _refuse_announced(length: str | None, limit_bytes: int) -> None:
    if length is not None and length.isdecimal() and int(length[:20]) > limit_bytes:
        raise _too_large(f"{length[:20]} bytes", limit_bytes)


def _too_large(what: str, limit_bytes: int) -> RefusedError:
    return RefusedError(
        413,
        f"the body has {what}, and {limit_bytes} are taken: send fewer rows at a time, or raise the "
        "server's --max-body-mib",
    )
