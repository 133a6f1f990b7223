"""`attnport validate URL --bundle B`: a served endpoint, judged like an engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from attnport.cli.screen import progress_bar
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.validate.report import Report

TOKEN_VARIABLE = "ATTNPORT_TOKEN"
_MODELS = "/v2/models/"

BundleOrUrl = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE|URL", help="The folder that `attnport export` wrote, or a served endpoint."
    ),
]
ServedBundle = Annotated[
    Path | None, typer.Option("--bundle", metavar="BUNDLE", help="What the endpoint serves.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"Holds the endpoint's bearer token; or set {TOKEN_VARIABLE}.",
    ),
]


def is_url(word: str) -> bool:
    return word.startswith(("http://", "https://"))


def refuse_engine_options(**given: object) -> None:
    """Options of engines say nothing of an endpoint.

    Raises:
        UsageError: If one was given.
    """
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name} is about engines of a bundle, and not about an endpoint: leave it out"
            )


def refuse_served_bundle(bundle: str, served: Path | None) -> None:
    """A bundle beside a bundle, where a URL was meant.

    Raises:
        UsageError: If there is one.
    """
    if served is not None:
        raise UsageError(f"--bundle goes with the URL of an endpoint, and {bundle} is none")


def read_token(file: Path | None) -> str | None:
    """The bearer token of a file, or of the environment; None where there is none.

    Raises:
        UsageError: If the file holds none.
    """
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        return token or None
    token = file.read_text("utf-8").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(f"{file} holds no token: write one line of printable ASCII to it")
    return token


def prove_url(url: str, bundle: Path | None, token_file: Path | None) -> Report:
    """Runs a bundle's cases through the endpoint at a URL.

    Args:
        url: Of the endpoint; with /v2/models/NAME[/versions/VERSION] where the endpoint calls the
            model otherwise than the bundle does.
        bundle: What it serves.
        token_file: Holds a bearer token.

    Raises:
        UsageError: If there is no bundle, or the URL is none.
        EngineUnavailableError: If nobody answers.
        EndpointError: If who answers does not speak the protocol.
    """
    if bundle is None:
        raise UsageError(
            f"{url} is judged by a bundle's cases: add --bundle and the folder that it serves"
        )
    from attnport.export.bundle import Bundle
    from attnport.serve.oip.http_transport import HttpTransport
    from attnport.serve.oip_engine import OipEngine, has_binary_tensors
    from attnport.serve.prove_endpoint import prove_endpoint

    server, model, version = _split(url)
    whole = Bundle.load(bundle)
    transport = HttpTransport(server, token=read_token(token_file))
    try:
        binary = has_binary_tensors(transport)
        engine = OipEngine(whole, transport, model=model, version=version, binary=binary)
        with progress_bar(f"proving {url}") as tell:
            return prove_endpoint(whole, engine, progress=tell)
    finally:
        transport.close()


def _split(url: str) -> tuple[str, str | None, str | None]:
    """The server, and where the path names them the model and its version."""
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise UsageError(f"{url!r} is no URL ({err}): give http://HOST:PORT") from err
    prefix, found, rest = parts.path.partition(_MODELS)
    server = urlunsplit((parts.scheme, parts.netloc, prefix.rstrip("/"), "", ""))
    if not found:
        return server, None, None
    names = [unquote(word) for word in rest.strip("/").split("/")]
    if len(names) == 3 and names[1] == "versions":
        return server, names[0], names[2]
    if len(names) == 1 and names[0]:
        return server, names[0], None
    raise UsageError(
        f"{url} names no model: give http://HOST:PORT/v2/models/NAME/versions/VERSION"
    )
