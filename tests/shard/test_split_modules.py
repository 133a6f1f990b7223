"""Attention with things of each head along the way, split, against the float64 module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.shard import modules
from tests.shard.making import make_bundle, prove_split
from torch import nn

from attnport.errors import GraphError, UsageError
from attnport.export.shard.shard_bundle import shard_bundle

SPLIT: dict[str, Callable[[], nn.Module]] = {
    "slopes": modules.Slopes,
    "relative table": modules.RelativeTable,
    "normalised heads": modules.NormalisedHeads,
    "rotary, 2 key/value heads": modules.Rotary,
    "one key/value head": lambda: modules.Plain(kv_heads=1),
    "capped": modules.Capped,
    "weights returned": modules.WeightsToo,
    "gated heads": modules.GatedHeads,
    "head size first": modules.SizeFirst,
    "gate and up apart": lambda: modules.Gated(merged=False),
    "gate and up together": lambda: modules.Gated(merged=True),
    "parallel, 50 columns": modules.Parallel,
    "torch.nn, batch first": lambda: nn.TransformerEncoderLayer(
        modules.WIDTH, modules.HEADS, 64, batch_first=True, activation="gelu"
    ),
}


# Of many alike; `make test-shard` runs them, too.
WIDE = {
    "capped", "gate and up apart", "gated heads", "head size first", "normalised heads",
    "one key/value head", "torch.nn, batch first",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.wide) if n in WIDE else n for n in SPLIT]
)
def test_split_over_2_and_4_ranks(name: str, tmp_path: Path) -> None:
    bundle = make_bundle(SPLIT[name](), tmp_path / "whole", cases=3)
    for ranks in (2, 4):
        engine = prove_split(bundle, ranks, tmp_path / f"on{ranks}")
        each = [one.weights.split for one in engine.sharded.manifest.ranks]
        assert max(each) < engine.sharded.manifest.weights.split


def test_heads_that_are_no_multiple_of_groups_repeat_one(tmp_path: Path) -> None:
    """6 query heads, 3 key/value heads, 2 ranks: the middle one is held by both."""
    bundle = make_bundle(modules.Plain(heads=6, kv_heads=3), tmp_path / "whole", cases=3)
    engine = prove_split(bundle, 2, tmp_path / "split")
    for rank in (0, 1):
        (info,) = engine.sharded.rank(rank).manifest.attentions
        assert (info.heads, info.kv_heads) == (3, 2)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "normalised over all heads": (modules.NormalisedWidth, "attn0 .* at its query: .*Pow"),
    "queries used elsewhere": (modules.QueriesToo, "attn0 .* at its query: .*ReduceSum"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_heads_is_refused_by_name(name: str, tmp_path: Path) -> None:
    make, said = REFUSED[name]
    bundle = make_bundle(make(), tmp_path / "whole", cases=1)
    with pytest.raises(GraphError, match=said):
        shard_bundle(bundle, 2, tmp_path / "split")
    assert not (tmp_path / "split").exists()


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    bundle = make_bundle(modules.Plain(heads=6, kv_heads=3), tmp_path / "whole", cases=1)
    with pytest.raises(UsageError, match=r"has 6 heads, which 4 ranks .* give --ranks 2, 3, 6"):
        shard_bundle(bundle, 4, tmp_path / "split")
