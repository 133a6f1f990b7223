"""Where the batch axis lies in each tensor of a model, and what may share a batch.

Requests share a batch where every other size is the same, and where every input without the batch
axis (a mask for all items) holds the same values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnport.axes import Axis
from attnport.export.records import TensorSpec

BATCH = "batch"

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class BatchAxis:
    """The batch axis of one model.

    Attributes:
        axis: Its range.
        inputs: For each input the dimension that it is; None where the input does not have it.
        outputs: For each output the dimension that it is.
    """

    axis: Axis
    inputs: Mapping[str, int | None]
    outputs: Mapping[str, int]

    def rows(self, feeds: Feeds) -> int:
        """How many rows a request brings."""
        sizes = (feeds[name].shape[at] for name, at in self.inputs.items() if at is not None)
        return int(next(sizes))

    def key(self, feeds: Feeds) -> tuple[object, ...]:
        """What requests must have in common to share a batch."""
        return tuple(
            _digest(feeds[name]) if at is None else _without(feeds[name].shape, at)
            for name, at in self.inputs.items()
        )

    def joined(self, requests: Sequence[Feeds]) -> dict[str, np.ndarray]:
        """The rows of several requests as one, in their order."""
        return {
            name: requests[0][name]
            if at is None
            else np.concatenate([feeds[name] for feeds in requests], axis=at)
            for name, at in self.inputs.items()
        }

    def parted(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int]
    ) -> list[dict[str, np.ndarray]]:
        """The outputs of each request again, from those of the batch."""
        ends = np.cumsum(rows)[:-1]
        parts = {name: np.split(outputs[name], ends, axis=at) for name, at in self.outputs.items()}
        return [{name: parts[name][i] for name in parts} for i in range(len(rows))]


def find_batch_axis(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], axes: Mapping[str, Axis]
) -> tuple[BatchAxis | None, str]:
    """The batch axis of a model, or why its requests cannot share a batch.

    Args:
        inputs: The model's inputs.
        outputs: Its outputs.
        axes: Its axes; the one that is called "batch" is looked for.
    """
    if BATCH not in axes:
        return None, f"no axis is called {BATCH!r}"
    found: dict[str, int | None] = {}
    for spec in (*inputs, *outputs):
        places = [at for at, dim in enumerate(spec.shape) if dim == BATCH]
        if len(places) > 1:
            return None, f"{spec.name} has the axis {BATCH!r} twice"
        found[spec.name] = places[0] if places else None
    lacking = [spec.name for spec in outputs if found[spec.name] is None]
    if lacking:
        return None, f"the output {lacking[0]} has no axis {BATCH!r}"
    if all(found[spec.name] is None for spec in inputs):
        return None, f"no input has the axis {BATCH!r}"
    places_out = {spec.name: at for spec in outputs if (at := found[spec.name]) is not None}
    return BatchAxis(axes[BATCH], {spec.name: found[spec.name] for spec in inputs}, places_out), ""


def _without(shape: tuple[int, ...], at: int) -> tuple[int, ...]:
    return shape[:at] + shape[at + 1 :]


def _digest(array: np.ndarray) -> tuple[object, ...]:
    return array.shape, hashlib.blake2b(array.tobytes(), digest_size=16).digest()
