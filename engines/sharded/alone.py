"""A rank's bundle is none to run by itself."""

from __future__ import annotations

from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.shard.files import ranks_of


def refuse_lone_rank(bundle: Bundle) -> None:
    """Refuses a bundle that is one rank of a split one: without the others its sums are partial.

    Raises:
        UsageError: If it is.
    """
    ranks = ranks_of(bundle.model_path)
    if ranks is not None:
        raise UsageError(
            f"{bundle.path} is for {ranks} ranks, and computes nothing without the others: give "
            f"the folder of all ranks, `attnport validate {bundle.path.parent}`"
        )
