"""`shard_bundle`: one bundle for each rank, and the manifest that ties them.

shard.json          which ranks belong together, what each is fed and gives, what is summed
rank0/, rank1/, …   a bundle each: a part of the weights, and the sums as nodes of our own
reference/          the description and the cases of the bundle that was split
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.shard.files import RANK, SHARD
from attnport.export.shard.folder import new_shard_folder, write_rank, write_reference
from attnport.export.shard.held import Held
from attnport.export.shard.records import FORMAT_VERSION, Part, RankFolder, ShardManifest
from attnport.export.shard.split_graph import RankModel, load_whole, rank_model

Progress = Callable[[str, float], None]
MOST_RANKS = 64


def shard_bundle(
    bundle: Bundle, ranks: int, out: str | Path, *, progress: Progress | None = None
) -> ShardManifest:
    """Splits a bundle over ranks, by heads and by the columns of feed-forwards.

    Args:
        bundle: What to split.
        ranks: On how many devices it is to run, 2 to 64.
        out: The folder to write; one that was written by this before is replaced.
        progress: Called with each step's name and the fraction that is done.

    Returns:
        What was written as `shard.json`.

    Raises:
        UsageError: If the heads do not divide, or `out` holds something else.
        GraphError: If an attention cannot be split; names it and what is in the way.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise UsageError(f"{ranks} ranks were asked for: give 2 to {MOST_RANKS}")
    if (bundle.path / RANK).exists():
        raise UsageError(
            f"{bundle.path} is a rank of a bundle that was split already: give the whole bundle"
        )
    tell = progress or (lambda step, fraction: None)
    tell("looking at the graph", 0.0)
    whole = load_whole(bundle, ranks)
    split = hashlib.sha256(f"{FORMAT_VERSION} {bundle.hash} {ranks}".encode()).hexdigest()
    with new_shard_folder(out) as folder:
        folders: list[RankFolder] = []
        parts: list[Mapping[str, Held]] = []
        for rank in range(ranks):
            tell(f"rank {rank}", (1 + rank) / (ranks + 1))
            made = rank_model(bundle, whole, rank, ranks)
            folders.append(write_rank(folder, bundle, made, rank, ranks, split))
            parts.append(made.parts)
        manifest = _manifest(bundle, split, made, folders, parts)
        write_reference(folder, bundle)
        (folder / SHARD).write_text(manifest.model_dump_json(indent=2) + "\n", "utf-8")
    tell("done", 1.0)
    return manifest


def _manifest(
    bundle: Bundle,
    split: str,
    last: RankModel,
    folders: list[RankFolder],
    parts: list[Mapping[str, Held]],
) -> ShardManifest:
    whole = bundle.manifest
    return ShardManifest(
        format_version=FORMAT_VERSION,
        name=bundle.name,
        dtype=whole.dtype,
        bundle=bundle.hash,
        split=split,
        ranks=tuple(folders),
        inputs=whole.inputs,
        outputs=whole.outputs,
        split_inputs=_joined([spec.name for spec in whole.inputs], parts),
        split_outputs=_joined([spec.name for spec in whole.outputs], parts),
        reductions=last.reductions,
        weights=last.whole_weights,
    )


def _joined(names: list[str], parts: list[Mapping[str, Held]]) -> tuple[Part, ...]:
    """For each tensor of which some rank holds a part, what each rank holds."""
    found = []
    for name in names:
        held = [of_rank.get(name) for of_rank in parts]
        axes = {part.axis for part in held if part is not None}
        if not axes:
            continue
        (axis,) = axes
        size = next(part.size for part in held if part is not None)
        every = tuple(range(size))
        positions = tuple(every if part is None else part.positions for part in held)
        found.append(Part(name=name, axis=axis, positions=positions))
    return tuple(found)
