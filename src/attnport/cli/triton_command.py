"""`attnport triton`: bundles as a model repository of Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnport.cli.screen import say, warn
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.serve.repository.config import Backend, Device

Bundles = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME[:VERSION]=]BUNDLE...", help="The folders that `attnport export` wrote."
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="REPO", help="The repository.")]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        help="onnxruntime; tensorrt, for the plan that lies in the bundle; or python, with ONNX "
        "Runtime inside, where Triton has only that.",
    ),
]
Accelerator = Annotated[
    bool,
    typer.Option("--tensorrt", help="Let ONNX Runtime use TensorRT (an execution accelerator)."),
]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", help="cpu or gpu; by default gpu where TensorRT needs one."),
]
Instances = Annotated[int, typer.Option("--instances", help="Copies that compute at a time.")]
MaxBatch = Annotated[
    int | None,
    typer.Option("--max-batch", help="Rows of a batch; 0 for none, by default the axis' maximum."),
]
Preferred = Annotated[
    list[int] | None,
    typer.Option("--preferred-batch", help="A size at which a batch goes at once; repeatable."),
]
Delay = Annotated[
    int, typer.Option("--queue-delay-us", help="Microseconds that a request waits for company.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads of ONNX Runtime in one copy.")
]


def triton(
    bundles: Bundles,
    out: Out,
    backend: BackendName = "onnxruntime",
    tensorrt: Accelerator = False,
    device: DeviceName = None,
    instances: Instances = 1,
    max_batch: MaxBatch = None,
    preferred_batch: Preferred = None,
    queue_delay_us: Delay = 0,
    threads: Threads = None,
) -> None:
    """Write a model repository for Triton Inference Server, for those who outgrow one machine.

    Dims, types, batching and profiles come from the bundle's axes, warm-up requests from its cases.
    Models that lie in the repository already stay; those of the same name are replaced.

    \b
    attnport triton build/mh --out models
    attnport triton build/mh --out models --tensorrt
    attnport triton mh:1=build/mh-1 mh:2=build/mh-2 --out models --backend tensorrt
    attnport triton build/mh-2 --out models --backend tensorrt  split over devices; see docs/sharding.md
    attnport validate http://HOST:8000 --bundle build/mh       proves what Triton serves
    """
    from attnport.export.shard.files import SHARD
    from attnport.serve.open_models import Source
    from attnport.serve.repository.config_from_bundle import RepositoryOptions
    from attnport.serve.repository.several_devices import NOT_RUN
    from attnport.serve.repository.write import write_repository

    options = RepositoryOptions(
        backend=_backend(backend),
        device=_device(device),
        accelerator=tensorrt,
        instances=instances,
        max_batch=max_batch,
        preferred_batches=tuple(preferred_batch or ()),
        queue_delay_us=queue_delay_us,
        threads=threads,
    )
    sources = [Source.parse(word) for word in bundles]
    for folder in write_repository(sources, out, options):
        say(f"written: {folder}")
    if any((Path(source.path) / SHARD).is_file() for source in sources):
        warn(NOT_RUN)
    say(f"start it:  tritonserver --model-repository={out}")


def _backend(name: str) -> Backend:
    known: tuple[Literal["onnxruntime", "tensorrt", "python"], ...]
    known = ("onnxruntime", "tensorrt", "python")
    for backend in known:
        if backend == name:
            return backend
    raise UsageError(f"there is no backend {name!r}: use one of {', '.join(known)}")


def _device(name: str | None) -> Device | None:
    if name is None:
        return None
    known: tuple[Literal["cpu", "gpu"], ...] = ("cpu", "gpu")
    for device in known:
        if device == name:
            return device
    raise UsageError(f"there is no device {name!r}: use cpu or gpu")
