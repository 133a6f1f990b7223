"""One engine in several threads and in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attnport.engines.open import open_engine
from attnport.errors import InputError
from attnport.export.bundle import Bundle

BundleMaker = Callable[..., Bundle]


def feeds_of(seed: int) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    return {"x": draws.standard_normal((1, 8, 128)).astype(np.float32)}


def test_threads_get_their_own_results(attention_bundle: BundleMaker) -> None:
    with open_engine(attention_bundle(dtype="float32"), "ort-cpu", threads=1) as engine:
        alone = [engine.run(feeds_of(seed))["y"] for seed in range(32)]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda seed: engine.run(feeds_of(seed))["y"], range(32)))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_asynchronous_form_gives_the_same(attention_bundle: BundleMaker) -> None:
    async def together() -> list[dict[str, np.ndarray]]:
        return await asyncio.gather(*(engine.run_async(feeds_of(seed)) for seed in range(8)))

    with open_engine(attention_bundle(dtype="float32"), "ort-cpu", threads=1) as engine:
        results = asyncio.run(together())
        for seed, result in enumerate(results):
            np.testing.assert_array_equal(result["y"], engine.run(feeds_of(seed))["y"])


def test_the_asynchronous_form_checks_too(attention_bundle: BundleMaker) -> None:
    with (
        open_engine(attention_bundle(dtype="float32"), "ort-cpu") as engine,
        pytest.raises(InputError, match="missing: x"),
    ):
        asyncio.run(engine.run_async({}))
