"""A request that is not answered with a result: the HTTP status and the sentence it gets."""

from __future__ import annotations

from attnport.errors import AttnportError


class RefusedError(AttnportError):
    """What the endpoint answers in place of a result.

    Attributes:
        status: The HTTP status.
        closes: Whether the connection is closed after it, because the rest is not awaited.
    """

    def __init__(self, status: int, sentence: str, *, closes: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.closes = closes


def bad_request(sentence: str) -> RefusedError:
    return RefusedError(400, sentence)


class ClientGoneError(AttnportError):
    """The client closed the connection before its request was whole: nobody waits for an answer."""
