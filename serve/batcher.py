"""Dynamic batching: requests that wait while the engine computes are computed together.

Nothing waits for company that an idle engine could compute at once, unless a delay is asked for: a
batch is what gathered while the last one was computed. First come, first served; those that cannot
share the first one's batch keep their places.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from attnport.errors import InternalError
from attnport.serve.batch_axis import BatchAxis
from attnport.serve.refusal import RefusedError

Feeds = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Computed:
    """The outputs of one request and how they came about.

    Attributes:
        outputs: Its own rows.
        queue_seconds: How long it waited for the engine.
        compute_seconds: How long the engine took for the batch.
        batch_rows: How many rows the batch had.
        batch_requests: How many requests they came from.
    """

    outputs: Outputs
    queue_seconds: float
    compute_seconds: float
    batch_rows: int
    batch_requests: int


@dataclass(eq=False)
class _Waiting:
    feeds: Feeds
    key: tuple[object, ...]
    rows: int
    future: asyncio.Future[Computed]
    since: float


class Batcher:
    """Gathers requests into batches and hands them to an engine's threads.

    Args:
        run: The engine.
        axis: Along which requests are joined; None computes each alone.
        max_rows: The most rows of a batch.
        max_queue: How many requests may wait; the next one is refused.
        delay_seconds: How long the first of a batch may wait for company.
        workers: How many batches are computed at a time.
    """

    def __init__(
        self,
        run: Callable[[Feeds], Outputs],
        axis: BatchAxis | None,
        *,
        max_rows: int,
        max_queue: int,
        delay_seconds: float = 0.0,
        workers: int = 1,
    ) -> None:
        self._run = run
        self._axis = axis
        self._max_rows = max_rows
        self._max_queue = max_queue
        self._delay_seconds = delay_seconds
        self._free = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="attnport-compute")
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queue_length(self) -> int:
        return len(self._waiting)

    async def submit(self, feeds: Feeds) -> Computed:
        """Computes one request, perhaps together with others.

        Raises:
            RefusedError: With status 429, if too many wait already.
        """
        if len(self._waiting) >= self._max_queue:
            raise RefusedError(
                429,
                f"{len(self._waiting)} requests wait for this model, and no more are taken: "
                "send it again later",
            )
        axis = self._axis
        item = _Waiting(
            feeds,
            key=axis.key(feeds) if axis else (),
            rows=axis.rows(feeds) if axis else 1,
            future=asyncio.get_running_loop().create_future(),
            since=time.monotonic(),
        )
        self._waiting.append(item)
        self._start()
        try:
            return await item.future
        except asyncio.CancelledError:
            if item in self._waiting:
                self._waiting.remove(item)
            raise

    async def close(self) -> None:
        """Waits for what was accepted, then frees the threads."""
        while self._tasks or self._waiting:
            await asyncio.sleep(0.01)
        self._pool.shutdown()

    def _start(self) -> None:
        """Hands out batches as long as a thread is free and the first may go."""
        while self._free and self._waiting:
            batch = self._first_batch()
            left = self._waiting[0].since + self._delay_seconds - time.monotonic()
            full = not self._axis or sum(item.rows for item in batch) >= self._max_rows
            if left > 0 and not full:
                self._start_in(left)
                return
            for item in batch:
                self._waiting.remove(item)
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._compute(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _start_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _first_batch(self) -> list[_Waiting]:
        """The first that waits, and those behind it that fit in with it."""
        first = self._waiting[0]
        batch, rows = [first], first.rows
        if self._axis is None:
            return batch
        for item in list(self._waiting)[1:]:
            if rows >= self._max_rows:
                break
            if item.key == first.key and rows + item.rows <= self._max_rows:
                batch.append(item)
                rows += item.rows
        return batch

    async def _compute(self, batch: Sequence[_Waiting]) -> None:
        started = time.monotonic()
        try:
            results = await self._in_thread(batch)
        except InternalError as err:
            for item in batch:
                _fail(item, err)
        except Exception as err:
            if len(batch) == 1:
                _fail(batch[0], err)
            else:
                await self._compute_each(batch)
        else:
            seconds = time.monotonic() - started
            rows = sum(item.rows for item in batch)
            for item, outputs in zip(batch, results, strict=True):
                waited = started - item.since
                _answer(item, Computed(outputs, waited, seconds, rows, len(batch)))
        finally:
            self._free += 1
            self._start()

    async def _compute_each(self, batch: Sequence[_Waiting]) -> None:
        """After a batch failed: nobody pays for what another one sent."""
        for item in batch:
            started = time.monotonic()
            try:
                (outputs,) = await self._in_thread([item])
            except Exception as err:
                _fail(item, err)
            else:
                waited, seconds = started - item.since, time.monotonic() - started
                _answer(item, Computed(outputs, waited, seconds, item.rows, 1))

    async def _in_thread(self, batch: Sequence[_Waiting]) -> list[Outputs]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._run_batch, batch)

    def _run_batch(self, batch: Sequence[_Waiting]) -> list[Outputs]:
        if len(batch) == 1 or self._axis is None:
            return [self._run(batch[0].feeds)]
        outputs = self._run(self._axis.joined([item.feeds for item in batch]))
        rows = [item.rows for item in batch]
        for name, at in self._axis.outputs.items():
            if outputs[name].shape[at] != sum(rows):
                raise InternalError(
                    f"output {name} has {outputs[name].shape[at]} rows for a batch of {sum(rows)}"
                )
        return self._axis.parted(outputs, rows)


def _answer(item: _Waiting, computed: Computed) -> None:
    if not item.future.done():  # its client may have run out of time
        item.future.set_result(computed)


def _fail(item: _Waiting, error: Exception) -> None:
    if not item.future.done():
        item.future.set_exception(error)
