"""A model behind the endpoint: its engine, its queue, and whether it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attnport.engines.engine import Engine
from attnport.engines.feeds import compile_check
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec
from attnport.serve.batch_axis import BatchAxis, find_batch_axis
from attnport.serve.batcher import Batcher
from attnport.serve.oip.datatypes import oip_datatype


@dataclass(frozen=True)
class Batching:
    """How requests are joined.

    Attributes:
        enabled: Whether they are.
        max_rows: The most rows of a batch; None is the maximum of the bundle's axis.
        delay_seconds: How long a request may wait for company while the engine is idle.
    """

    enabled: bool = True
    max_rows: int | None = None
    delay_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise UsageError(f"a batch of {self.max_rows} rows computes nothing: give 1 or more")
        if not self.delay_seconds >= 0:
            raise UsageError(f"the batch delay is {self.delay_seconds}: give 0 or more")


class ServedModel:
    """One version of one model.

    Args:
        name: What clients call it.
        version: Its version, a whole number as text.
        bundle: What it was made from.
        engine: What computes it; it belongs to this object, which closes it.
        batching: How requests are joined; `Batching()` by default.
        queue: How many requests may wait.
        workers: How many batches are computed at a time.
        unproved: Whether it may be ready without a case.

    Attributes:
        ready: Whether clients get results.
        reason: Why not.
    """

    def __init__(
        self,
        name: str,
        version: str,
        bundle: Bundle,
        engine: Engine,
        *,
        batching: Batching | None = None,
        queue: int = 128,
        workers: int = 1,
        unproved: bool = False,
    ) -> None:
        self.unproved = unproved
        batching = batching or Batching()
        self.name, self.version = name, version
        self.bundle, self.engine = bundle, engine
        self.inputs: Mapping[str, TensorSpec] = {spec.name: spec for spec in engine.inputs}
        self.outputs = engine.outputs
        self.check: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
        self.check = compile_check(engine.inputs, bundle.axes)
        self.ready, self.reason = False, "its cases have not been run yet"
        self.batch_axis, self.unbatched = _batch_axis(bundle, engine, batching)
        self.batcher = Batcher(
            engine.run,
            self.batch_axis,
            max_rows=_max_rows(self.batch_axis, batching),
            max_queue=queue,
            delay_seconds=batching.delay_seconds,
            workers=workers,
        )

    def metadata(self, versions: list[str]) -> dict[str, object]:
        """What the protocol tells of a model; a size that varies is -1."""
        return {
            "name": self.name,
            "versions": versions,
            "platform": f"attnport_{self.engine.kind}",
            "inputs": [_tensor(spec) for spec in self.inputs.values()],
            "outputs": [_tensor(spec) for spec in self.outputs],
        }

    async def close(self) -> None:
        """Finishes what was accepted, then closes the engine."""
        await self.batcher.close()
        self.engine.close()


def _batch_axis(
    bundle: Bundle, engine: Engine, batching: Batching
) -> tuple[BatchAxis | None, str]:
    if not batching.enabled:
        return None, "batching is off"
    return find_batch_axis(engine.inputs, engine.outputs, bundle.axes)


def _max_rows(axis: BatchAxis | None, batching: Batching) -> int:
    if axis is None:
        return 1
    return min(batching.max_rows or axis.axis.max, axis.axis.max)


def _tensor(spec: TensorSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "datatype": oip_datatype(spec.dtype),
        "shape": [dim if isinstance(dim, int) else -1 for dim in spec.shape],
    }
