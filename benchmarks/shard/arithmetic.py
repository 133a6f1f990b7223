"""Bytes over the wire and time on N devices, as arithmetic from what a split bundle says of itself.

Assumptions, all named in the table that is drawn from them:
    sums       a ring: each rank sends 2·(N-1)/N of the tensor for each sum
    products   2 operations for each weight and token; attention's own products are left out
    time       compute and memory overlap (the larger counts), sums overlap with nothing
"""

from __future__ import annotations

from dataclasses import dataclass

from attnport.export.arrays import numpy_dtype
from attnport.export.shard.records import ShardManifest


@dataclass(frozen=True)
class Device:
    """What is assumed of a device and of the links between them.

    Attributes:
        name: What it is like.
        operations_per_second: Dense half-precision multiplications and additions that are reached.
        memory_bytes_per_second: That are reached.
        link_bytes_per_second: In one direction, of one device.
        sum_seconds: What a sum costs however small it is.
    """

    name: str
    operations_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    sum_seconds: float


# Round numbers below the data sheets of an H100 SXM with NVLink, and of an L4 over PCIe 4.
DEVICES = (
    Device("H100-like, NVLink", 5e14, 2.5e12, 3.5e11, 1e-5),
    Device("L4-like, PCIe", 8e13, 2.4e11, 2e10, 3e-5),
)


def sent_bytes_per_token(manifest: ShardManifest) -> float:
    """What one rank sends for each token."""
    ranks = len(manifest.ranks)
    size = numpy_dtype(manifest.dtype).itemsize
    numbers = sum(one.width for one in manifest.reductions)
    return 2 * (ranks - 1) / ranks * numbers * size


def expected_seconds(manifest: ShardManifest, tokens: int, device: Device) -> tuple[float, float]:
    """The time of one run, whole on one device and split over the ranks.

    Args:
        manifest: The split bundle.
        tokens: How many are computed at once.
        device: What is assumed.
    """
    whole = _busy(manifest.weights.total, manifest, tokens, device)
    held = max(one.weights.total for one in manifest.ranks)
    sums = len(manifest.reductions) * device.sum_seconds
    sent = tokens * sent_bytes_per_token(manifest) / device.link_bytes_per_second
    return whole, _busy(held, manifest, tokens, device) + sums + sent


def _busy(weights: int, manifest: ShardManifest, tokens: int, device: Device) -> float:
    operations = 2 * weights / numpy_dtype(manifest.dtype).itemsize * tokens
    return max(operations / device.operations_per_second, weights / device.memory_bytes_per_second)
