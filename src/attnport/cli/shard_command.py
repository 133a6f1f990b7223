"""`attnport shard`: a bundle split over devices, by heads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.options import BundlePath, Engines, known_engines
from attnport.cli.screen import progress_bar, say, show_table
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.export.shard.records import ShardManifest, WeightBytes

Ranks = Annotated[
    int, typer.Option("--ranks", "-n", help="On how many devices it is to run: 2, 4, …")
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of all ranks.")]


OnePlan = Annotated[
    bool,
    typer.Option(
        "--one-plan",
        help="Also write together/, one graph that every rank loads and takes its part of, as "
        "Triton's TensorRT backend wants it; each device then holds all weights.",
    ),
]


def shard(
    bundle: BundlePath,
    ranks: Ranks,
    out: Out,
    engines: Engines = None,
    one_plan: OnePlan = False,
) -> None:
    """Split a bundle over devices: heads and feed-forward columns, with sums between.

    Each rank gets a bundle with its part of the weights, and a graph for TensorRT with its own
    collectives, model.tensorrt.onnx. With --engine tensorrt-rtx the ranks' plans are built, too.

    \b
    attnport shard build/encoder --ranks 2 --out build/encoder-2
    attnport shard build/encoder --ranks 4 --out build/encoder-4 --engine tensorrt-rtx
    attnport validate build/encoder-2                   starts a process for each rank, and proves
    torchrun --nproc-per-node 2 your_script.py          see docs/sharding.md
    """
    kinds = known_engines(engines)
    from attnport.engines.kinds import engine_kind
    from attnport.export.bundle import Bundle
    from attnport.export.shard.shard_bundle import shard_bundle

    for kind in kinds:
        if not engine_kind(kind).builds_plan:
            raise UsageError(
                f"{kind} builds no plan of a rank: name tensorrt-rtx or tensorrt, or none; "
                f"`attnport validate {out}` runs the ranks in ONNX Runtime"
            )
    whole = Bundle.load(bundle)
    with progress_bar(f"splitting {whole.name}") as tell:
        manifest = shard_bundle(whole, ranks, out, progress=tell)
    _show(manifest)
    if one_plan:
        from attnport.export.shard.joint_bundle import write_joint_bundle
        from attnport.export.shard.sharded import ShardedBundle

        say(f"{write_joint_bundle(ShardedBundle.load(out)).path}: one graph for all ranks")
    for kind in kinds:
        _build(out, manifest, kind)
    say(f"{out}: {ranks} ranks; prove them with `attnport validate {out}`")


def _show(manifest: ShardManifest) -> None:
    rows = [("whole", *_bytes(manifest.weights))]
    rows += [(one.folder, *_bytes(one.weights)) for one in manifest.ranks]
    show_table(("weights of", "bytes", "split", "repeated"), rows)
    rows = [(one.of, one.kind, one.name, str(one.width)) for one in manifest.reductions]
    show_table(("after", "which is", "sum over the ranks", "numbers a token"), rows)
    for what, parts in (("input", manifest.split_inputs), ("output", manifest.split_outputs)):
        for part in parts:
            say(f"{what} {part.name} is split along axis {part.axis}")


def _bytes(weights: WeightBytes) -> tuple[str, str, str]:
    return f"{weights.total:,}", f"{weights.split:,}", f"{weights.repeated:,}"


def _build(out: Path, manifest: ShardManifest, kind: str) -> None:
    from attnport.cli.build_command import build_and_show
    from attnport.export.bundle import Bundle

    for one in manifest.ranks:
        build_and_show(Bundle.load(out / one.folder), kind, None)
