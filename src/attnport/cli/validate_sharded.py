"""`attnport validate` of a folder that `attnport shard` wrote: all ranks, each in its process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnport.cli.screen import progress_bar, say
from attnport.errors import UsageError

if TYPE_CHECKING:
    from attnport.export.shard.sharded import ShardedBundle
    from attnport.validate.report import Report
    from attnport.validate.requirements import Requirements

RankTimeout = Annotated[
    float | None,
    typer.Option(
        "--rank-timeout",
        metavar="SECONDS",
        help="Of a split bundle: how long a rank waits for the others, 60 by default.",
    ),
]
_PLANS = ("tensorrt-rtx", "tensorrt")


def is_split(bundle: str) -> bool:
    """Whether a folder holds a bundle that was split."""
    from attnport.export.shard.files import SHARD

    return (Path(bundle) / SHARD).is_file()


def refuse_rank_timeout(bundle: str, seconds: float | None) -> None:
    """Refuses an option that goes with a split bundle only.

    Raises:
        UsageError: If it is given.
    """
    if seconds is not None:
        raise UsageError(f"--rank-timeout goes with a split bundle, and {bundle} is none")


def refuse_for_split(bundle: str, **given: object) -> None:
    """Refuses options that a split bundle has no use for.

    Raises:
        UsageError: If one is given; names it.
    """
    named = [f"--{name}" for name, value in given.items() if value]
    if named:
        raise UsageError(
            f"{bundle} is split over ranks, of which {' and '.join(named)} is not known: give the "
            "whole bundle, or leave it out"
        )


def prove_folder(
    bundle: str,
    kinds: Sequence[str],
    require: Requirements,
    *,
    rank_timeout: float | None,
) -> Report:
    """Proves a split bundle; plans that lie in its ranks are judged, too.

    Raises:
        BundleError: If ranks are missing or do not belong together.
        UsageError: If a kind of engine cannot run it.
    """
    from attnport.export.shard.sharded import ShardedBundle
    from attnport.validate.sharded import RunOptions, prove_sharded

    sharded = ShardedBundle.load(bundle)
    asked = list(kinds) or ["ort-cpu", *_plans_there(sharded)]
    options = RunOptions() if rank_timeout is None else RunOptions(timeout_seconds=rank_timeout)
    with progress_bar(f"proving {sharded.manifest.name} on {sharded.count} ranks") as tell:
        return prove_sharded(sharded, asked, require=require, options=options, progress=tell)


def _plans_there(sharded: ShardedBundle) -> list[str]:
    from attnport.engines.plan_file import plan_path

    found = [
        kind
        for kind in _PLANS
        if any(
            plan_path(sharded.path / one.folder, kind).exists() for one in sharded.manifest.ranks
        )
    ]
    for kind in found:
        say(f"{kind}: judging the plans of the ranks in {sharded.path}")
    return found
