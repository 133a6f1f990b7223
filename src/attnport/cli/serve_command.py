"""`attnport serve`: proved bundles behind the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.screen import say, warn
from attnport.cli.validate_endpoint import TOKEN_VARIABLE, read_token

if TYPE_CHECKING:
    from attnport.serve.open_models import Proof, Source
    from attnport.serve.served_model import Batching
    from attnport.serve.settings import Limits, Settings

_MIB = 1 << 20

Bundles = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME[:VERSION]=]BUNDLE...", help="The folders that `attnport export` wrote."
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        "--engine", "-e", metavar="KIND", help="ort-cpu, ort-cuda, tensorrt or tensorrt-rtx."
    ),
]
Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", help="The port; 0 takes a free one.")]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.json",
        help="The report that proves the bundles; else report.json in the bundle, or beside it.",
    ),
]
Unproved = Annotated[bool, typer.Option("--unproved", help="Serve without a proof.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"Holds the bearer token that clients must send; or set {TOKEN_VARIABLE}.",
    ),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-certificate", metavar="FILE.pem", help="Speak HTTPS.")
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE.pem", help="Its key.")]
MaxBody = Annotated[
    float | None,
    typer.Option(
        "--max-body-mib", help="The largest body; by default what the largest request takes."
    ),
]
MaxRequests = Annotated[int, typer.Option("--max-requests", help="In progress at a time.")]
MaxQueue = Annotated[int, typer.Option("--max-queue", help="Waiting for one model.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait and compute.")]
BodyTimeout = Annotated[float, typer.Option("--body-timeout", help="Seconds for a body.")]
Drain = Annotated[
    float, typer.Option("--drain", help="Seconds between the signal to stop and closing the port.")
]
NoBatching = Annotated[bool, typer.Option("--no-batching", help="Compute each request alone.")]
MaxBatch = Annotated[
    int | None, typer.Option("--max-batch", help="Rows of a batch; by default the axis' maximum.")
]
BatchDelay = Annotated[
    float, typer.Option("--batch-delay-ms", help="Wait so long for company, the engine idle.")
]
Workers = Annotated[int, typer.Option("--workers", help="Batches computed at a time.")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads that compute one batch.")
]


def serve(
    bundles: Bundles,
    engine: Kind = "ort-cpu",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    report: ReportFile = None,
    unproved: Unproved = False,
    token_file: TokenFile = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    max_body_mib: MaxBody = None,
    max_requests: MaxRequests = 256,
    max_queue: MaxQueue = 128,
    timeout: Timeout = 60.0,
    body_timeout: BodyTimeout = 30.0,
    drain: Drain = 1.0,
    no_batching: NoBatching = False,
    max_batch: MaxBatch = None,
    batch_delay_ms: BatchDelay = 0.0,
    workers: Workers = 1,
    threads: Threads = None,
) -> None:
    """Serve proved bundles over HTTP: the Open Inference Protocol (KServe v2), as Triton speaks it.

    A bundle is served when a report proves this engine on it, and is ready once its own cases came
    out right through the endpoint. SIGTERM stops it; what was accepted is answered.

    \b
    attnport serve build/mh --engine ort-cpu
    attnport serve mh:1=build/mh-float32 mh:2=build/mh-float16 --port 9000
    attnport validate http://127.0.0.1:8000 --bundle build/mh      proves the endpoint

    Exit codes: 0 stopped when asked to, 2 bad input or not proved.
    """
    from attnport.serve.open_models import Proof, Source
    from attnport.serve.served_model import Batching
    from attnport.serve.settings import Settings

    sources = [Source.parse(word) for word in bundles]
    limits = _limits(
        sources,
        max_body_mib,
        requests=max_requests,
        queue=max_queue,
        body_seconds=body_timeout,
        request_seconds=timeout,
    )
    token = read_token(token_file)
    settings = Settings(host, port, token, tls_certificate, tls_key, limits, drain)
    batching = Batching(not no_batching, max_batch, batch_delay_ms / 1e3)
    _listen(sources, engine, settings, Proof(report, unproved, warn), batching, workers, threads)


def _limits(sources: Sequence[Source], max_body_mib: float | None, **others: float) -> Limits:
    from attnport.export.bundle import Bundle
    from attnport.serve.settings import Limits, body_bytes_for

    if max_body_mib is None:
        body_bytes = body_bytes_for(Bundle.load(source.path) for source in sources)
    else:
        body_bytes = int(max_body_mib * _MIB)
    return Limits(body_bytes=body_bytes, **others)  # type: ignore[arg-type]


def _listen(
    sources: Sequence[Source],
    engine: str,
    settings: Settings,
    proof: Proof,
    batching: Batching,
    workers: int,
    threads: int | None,
) -> None:
    if settings.token is None and settings.host not in ("127.0.0.1", "::1", "localhost"):
        warn(
            f"{settings.host} may be reached from other machines, and no token is asked for: "
            "--token-file"
        )
    from attnport.serve.app import Endpoint
    from attnport.serve.logs import log_as_json
    from attnport.serve.open_models import open_models
    from attnport.serve.server import serve as listen

    queue = settings.limits.queue
    models = open_models(
        sources,
        engine,
        proof=proof,
        batching=batching,
        queue=queue,
        workers=workers,
        threads=threads,
    )
    log_as_json()
    listen(Endpoint(models, settings), settings, say)
