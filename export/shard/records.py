"""What is written about a bundle that was split: `shard.json`, and a rank's own part of it."""

from __future__ import annotations

from typing import Literal

from attnport.export.records import Dtype, Record, TensorSpec

FORMAT_VERSION = 1


class Part(Record):
    """Which positions along one axis of an input or output a rank holds.

    Attributes:
        name: Of the input or output.
        axis: Along which axis.
        positions: For each rank, which.
    """

    name: str
    axis: int
    positions: tuple[tuple[int, ...], ...]


class Reduction(Record):
    """A sum over the ranks.

    Attributes:
        name: Of its node.
        of: What it completes ("attn0", "feed_forward0").
        kind: Which of the two.
        width: Numbers that it has for each token.
    """

    name: str
    of: str
    kind: Literal["attention", "feed-forward"]
    width: int


class WeightBytes(Record):
    """The bytes of weights, of the whole bundle or of one rank.

    Attributes:
        split: Those of matrices, biases and tables of which each rank holds a part.
        repeated: Those that every rank holds whole.
    """

    split: int
    repeated: int

    @property
    def total(self) -> int:
        return self.split + self.repeated


class RankFolder(Record):
    """One rank's bundle.

    Attributes:
        folder: Relative to `shard.json`.
        graph_sha256: Of its graph.
        weights_sha256: Of its weights.
        bundle_sha256: Of its `bundle.json`.
        weights: What it holds.
    """

    folder: str
    graph_sha256: str
    weights_sha256: str
    bundle_sha256: str
    weights: WeightBytes


class ShardManifest(Record):
    """The content of `shard.json`.

    Attributes:
        format_version: Of this file.
        name: The model's.
        dtype: Of the graphs.
        bundle: The hash of the bundle that was split.
        split: What its ranks have in common, and no others: the hash of how it was split.
        ranks: One for each.
        inputs: Those of the whole graph.
        outputs: Likewise.
        split_inputs: Those of which each rank is fed a part.
        split_outputs: Those of which each rank gives a part.
        reductions: The sums, in the order of the graph.
        weights: Those of the whole bundle.
        reference: The folder with the bundle's description and cases, without its graph.
    """

    format_version: int
    name: str
    dtype: Dtype
    bundle: str
    split: str
    ranks: tuple[RankFolder, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    split_inputs: tuple[Part, ...] = ()
    split_outputs: tuple[Part, ...] = ()
    reductions: tuple[Reduction, ...]
    weights: WeightBytes
    reference: str = "reference"


class RankRecord(Record):
    """The content of `rank.json`, beside a rank's graph.

    Attributes:
        rank: Which one, from 0; None for the graph of all of them.
        ranks: Of how many.
        bundle: The hash of the bundle that was split.
        split: What the ranks that belong together have in common: the hash of how it was split.
        reductions: The names of the sums, in order.
    """

    rank: int | None
    ranks: int
    bundle: str
    split: str
    reductions: tuple[str, ...]
