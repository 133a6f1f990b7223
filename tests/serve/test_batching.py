"""Requests that share a batch: never each other's rows, never more than asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.serve.bundles import WIDTH, identity_bundle, sample

from attnport.axes import Axis
from attnport.engines.open import open_engine
from attnport.errors import GraphError, InternalError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec
from attnport.serve.batch_axis import BatchAxis, find_batch_axis
from attnport.serve.batcher import Batcher, Computed
from attnport.serve.readiness import RowByRow
from attnport.serve.refusal import RefusedError
from attnport.validate.bound import bound
from attnport.validate.parity import check_parity

Feeds = Mapping[str, np.ndarray]
AXIS = BatchAxis(Axis("batch", 1, 2, 8), {"x": 0}, {"y": 0})


class Recorder:
    """An engine's run that notes its batches, and waits until it may go."""

    def __init__(self) -> None:
        self.batches: list[np.ndarray] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, feeds: Feeds) -> dict[str, np.ndarray]:
        assert self.go.wait(10)
        self.batches.append(feeds["x"])
        return {"y": feeds["x"] * 2}


async def submit_all(batcher: Batcher, arrays: list[np.ndarray]) -> list[Computed]:
    return list(await asyncio.gather(*(batcher.submit({"x": x}) for x in arrays)))


def run_all(recorder: Recorder, arrays: list[np.ndarray], **options: float) -> list[Computed]:
    """The first request occupies the engine; the others gather behind it."""

    async def together() -> list[Computed]:
        settings = {"max_rows": 8, "max_queue": 64, **options}
        batcher = Batcher(recorder, AXIS, **settings)  # type: ignore[arg-type]
        recorder.go.clear()
        waiting = [asyncio.ensure_future(submit_all(batcher, arrays))]
        await asyncio.sleep(0.05)
        recorder.go.set()
        (results,) = await asyncio.gather(*waiting)
        await batcher.close()
        return results

    return asyncio.run(together())


def of_rows(*rows: int, width: int = 3) -> list[np.ndarray]:
    return [np.full((n, width), i, np.float32) for i, n in enumerate(rows)]


def test_what_waits_is_computed_together_and_comes_back_apart() -> None:
    recorder, arrays = Recorder(), of_rows(1, 1, 2, 3)
    results = run_all(recorder, arrays)
    assert [len(batch) for batch in recorder.batches] == [1, 6]
    for x, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.outputs["y"], x * 2)
    assert [(r.batch_rows, r.batch_requests) for r in results] == [(1, 1), *[(6, 3)] * 3]


def test_no_batch_exceeds_the_maximum() -> None:
    recorder, arrays = Recorder(), of_rows(1, 3, 3, 3, 3, 3, 8)
    results = run_all(recorder, arrays)
    assert [len(batch) for batch in recorder.batches] == [1, 6, 6, 3, 8]
    for x, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.outputs["y"], x * 2)


def test_other_sizes_are_another_batch_and_keep_their_turn() -> None:
    recorder = Recorder()
    arrays = of_rows(1) + of_rows(1, width=5) + of_rows(2, width=3) + of_rows(1, width=5)
    results = run_all(recorder, arrays)
    assert [batch.shape for batch in recorder.batches] == [(1, 3), (2, 5), (2, 3)]
    for x, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.outputs["y"], x * 2)


def test_a_delay_waits_for_company_and_no_longer() -> None:
    recorder = Recorder()

    async def one_after_the_other() -> None:
        batcher = Batcher(recorder, AXIS, max_rows=2, max_queue=8, delay_seconds=0.2)
        first = asyncio.ensure_future(batcher.submit({"x": of_rows(1)[0]}))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(batcher.submit({"x": of_rows(1)[0]}))
        assert {r.batch_rows for r in await asyncio.gather(first, second)} == {2}
        alone = await batcher.submit({"x": of_rows(1)[0]})
        assert alone.batch_rows == 1
        assert 0.1 < alone.queue_seconds < 5
        await batcher.close()

    asyncio.run(one_after_the_other())


def test_a_full_queue_refuses() -> None:
    recorder = Recorder()
    recorder.go.clear()

    async def fill() -> None:
        batcher = Batcher(recorder, None, max_rows=1, max_queue=2)
        taken = [asyncio.ensure_future(batcher.submit({"x": x})) for x in of_rows(1, 1, 1)]
        await asyncio.sleep(0.05)
        assert batcher.queue_length == 2
        with pytest.raises(RefusedError, match="2 requests wait for this model") as refused:
            await batcher.submit({"x": of_rows(1)[0]})
        assert refused.value.status == 429
        recorder.go.set()
        await asyncio.gather(*taken)
        await batcher.close()

    asyncio.run(fill())


def test_who_gives_up_leaves_the_queue() -> None:
    recorder = Recorder()
    recorder.go.clear()

    async def leave() -> None:
        batcher = Batcher(recorder, AXIS, max_rows=8, max_queue=8)
        first = asyncio.ensure_future(batcher.submit({"x": of_rows(1)[0]}))
        await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await batcher.submit({"x": of_rows(1)[0]})
        assert batcher.queue_length == 0
        recorder.go.set()
        await first
        await batcher.close()

    asyncio.run(leave())
    assert len(recorder.batches) == 1


def test_nobody_pays_for_what_another_sent() -> None:
    class Picky(Recorder):
        def __call__(self, feeds: Feeds) -> dict[str, np.ndarray]:
            if (feeds["x"] == 2).any():
                raise GraphError("it does not like 2")
            return super().__call__(feeds)

    picky, arrays = Picky(), of_rows(1, 1, 1, 1)

    async def together() -> list[Computed | BaseException]:
        batcher = Batcher(picky, AXIS, max_rows=8, max_queue=8, delay_seconds=0.05)
        tasks = (batcher.submit({"x": x}) for x in arrays)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()
        return results

    results = asyncio.run(together())
    assert [isinstance(result, GraphError) for result in results] == [False, False, True, False]
    for x, result in zip(arrays, results, strict=True):
        if isinstance(result, Computed):
            np.testing.assert_array_equal(result.outputs["y"], x * 2)


def test_an_engine_that_loses_rows_is_found_out() -> None:
    def loses(feeds: Feeds) -> dict[str, np.ndarray]:
        return {"y": feeds["x"][:1]}

    async def together() -> None:
        batcher = Batcher(loses, AXIS, max_rows=8, max_queue=8, delay_seconds=0.05)
        with pytest.raises(InternalError, match="has 1 rows for a batch of 3"):
            await submit_all(batcher, of_rows(1, 2))
        await batcher.close()

    asyncio.run(together())


def test_batched_results_are_the_unbatched_ones(attention: Bundle) -> None:
    """Every row of real attention, within the bound of its case, and nearer to none of another."""
    case = attention.load_case("b3n16")
    x, truth = case.inputs["x"], case.references["y"]
    limit = bound(case.record.references["y"], "float32").max
    with open_engine(attention, "ort-cpu", threads=1) as engine:
        axis, why = find_batch_axis(engine.inputs, engine.outputs, attention.axes)
        assert axis is not None, why
        rows = [x[i % 3 : i % 3 + 1] for i in range(12)]
        alone = [engine.run({"x": row})["y"] for row in rows]

        async def together() -> list[Computed]:
            batcher = Batcher(
                engine.run, axis, max_rows=3, max_queue=64, delay_seconds=0.02, workers=2
            )
            results = await submit_all(batcher, rows)
            await batcher.close()
            return results

        results = asyncio.run(together())
    assert {result.batch_rows for result in results} == {3}
    for i, (one, result) in enumerate(zip(alone, results, strict=True)):
        for found in (one, result.outputs["y"]):
            errors = np.abs(found[0].astype(np.float64) - truth).max(axis=(1, 2))
            assert errors[i % 3] <= limit
            assert (np.delete(errors, i % 3) > limit).all()


def test_mask_without_a_batch_axis_keeps_requests_apart() -> None:
    specs = (
        TensorSpec(name="x", dtype="float32", shape=("batch", "seq")),
        TensorSpec(name="mask", dtype="bool", shape=("seq", "seq"), role="mask"),
    )
    out = (TensorSpec(name="y", dtype="float32", shape=("batch", "seq")),)
    axis, _ = find_batch_axis(specs, out, {"batch": Axis("batch", 1, 2, 8)})
    assert axis is not None
    x, open_mask = np.zeros((1, 2), np.float32), np.ones((2, 2), bool)
    same = {"x": x + 1, "mask": open_mask.copy()}
    other = {"x": x, "mask": np.tril(open_mask)}
    assert axis.key({"x": x, "mask": open_mask}) == axis.key(same) != axis.key(other)
    joined = axis.joined([{"x": x, "mask": open_mask}, same])
    assert joined["x"].shape == (2, 2)
    assert joined["mask"].shape == (2, 2)


def test_the_batch_axis_may_lie_anywhere() -> None:
    axis = BatchAxis(Axis("batch", 1, 2, 8), {"x": 1}, {"y": 2})
    first, second = np.zeros((3, 1, 2)), np.ones((3, 2, 2))
    joined = axis.joined([{"x": first}, {"x": second}])["x"]
    parts = axis.parted({"y": joined.transpose(0, 2, 1)}, [1, 2])
    np.testing.assert_array_equal(parts[0]["y"], first.transpose(0, 2, 1))
    np.testing.assert_array_equal(parts[1]["y"], second.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (("rows", 8), ("rows", 8), "no axis is called 'batch'"),
        (("batch", "batch"), ("batch", 8), "x has the axis 'batch' twice"),
        (("batch", 8), (8,), "the output y has no axis 'batch'"),
        ((8,), ("batch", 8), "no input has the axis 'batch'"),
    ],
)
def test_what_cannot_be_batched_says_why(
    x: tuple[int | str, ...], y: tuple[int | str, ...], why: str
) -> None:
    name = "batch" if "batch" in (*x, *y) else "rows"
    specs = [TensorSpec(name=n, dtype="float32", shape=s) for n, s in (("x", x), ("y", y))]
    axis, said = find_batch_axis(specs[:1], specs[1:], {name: Axis(name, 1, 2, 8)})
    assert (axis, said) == (None, why)


def test_row_by_row_is_the_same_engine(attention: Bundle) -> None:
    with open_engine(attention, "ort-cpu", threads=1) as engine:
        axis, _ = find_batch_axis(engine.inputs, engine.outputs, attention.axes)
        assert axis is not None
        by_rows = RowByRow(engine, axis, 1)
        for finding in check_parity(by_rows, attention, "b3n16"):
            assert finding.status == "passed", finding.message


def test_identity_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    bundle = identity_bundle(tmp_path / "identity", "float32")
    with open_engine(bundle, "ort-cpu", threads=1) as engine:
        axis, _ = find_batch_axis(engine.inputs, engine.outputs, bundle.axes)
        arrays = [
            sample("float32", rows=1 + seed % 3, tokens=2 + seed % 2, seed=seed)
            for seed in range(40)
        ]

        async def together() -> list[Computed]:
            batcher = Batcher(engine.run, axis, max_rows=8, max_queue=64, delay_seconds=0.01)
            results = await submit_all(batcher, arrays)
            await batcher.close()
            return results

        results = asyncio.run(together())
    assert max(result.batch_rows for result in results) > 3
    for x, result in zip(arrays, results, strict=True):
        assert result.outputs["y"].shape == (*x.shape[:2], WIDTH)
        np.testing.assert_array_equal(result.outputs["y"], x)
