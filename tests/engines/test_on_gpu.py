"""Engines that need a CUDA device. Unrun until a machine with one has run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attnport.engines import devices
from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.engine import Engine
from attnport.engines.kinds import KINDS, availability, can_build
from attnport.engines.lowering import lower_bundle
from attnport.engines.open import open_engine
from attnport.engines.ort_profile import attentions_that_ran
from attnport.engines.plan_check import check_plan
from attnport.errors import InputError
from attnport.export.bundle import Bundle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        bool(devices.why_no_cuda()), reason=devices.why_no_cuda() or "there is one"
    ),
]
BundleMaker = Callable[..., Bundle]
PLANS = ("tensorrt", "tensorrt-rtx")
PROFILES = BuildOptions(profiles=({"seq": (2, 32, 64)}, {"seq": (1, 1, 1)}))


def require(kind: str) -> None:
    if availability(kind):
        pytest.skip(availability(kind))
    if not can_build(kind):
        pytest.skip(f"{kind} cannot be built here")


def feeds(seq: int, batch: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    values = np.random.default_rng(seed).standard_normal((batch, seq, 128))
    return {"x": values.astype(np.float16)}


def near(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Both round every one of the four products to fp16 at least once."""
    wide = wanted.astype(np.float64)
    bound = 4 * 128**0.5 * np.finfo(np.float16).eps * np.abs(wide).max()
    return bool(np.abs(found - wide).max() <= bound)


@pytest.fixture
def cpu(attention_bundle: BundleMaker) -> Iterator[tuple[Bundle, Engine]]:
    bundle = attention_bundle(causal="add")
    with open_engine(bundle, "ort-cpu") as engine:
        yield bundle, engine


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_computes_the_graph(cpu: tuple[Bundle, Engine], kind: str, graphs: bool) -> None:
    require(kind)
    bundle, reference = cpu
    plan = build_engine(bundle, kind, options=PROFILES)
    with open_engine(bundle, kind, plan=plan, cuda_graphs=graphs) as engine:
        for seq in (33, 33, 33, 1, 64, 1, 33, 2):
            result = engine.run(feeds(seq))["y"]
            assert near(result, reference.run(feeds(seq))["y"])
            np.testing.assert_array_equal(result, engine.run(feeds(seq))["y"])
        with pytest.raises(InputError, match="takes 1 to 64"):
            engine.run(feeds(65))
    assert check_plan(plan.path or "").verdict == "runs here"


@pytest.mark.parametrize("kind", PLANS)
def test_both_profiles_are_told_of(cpu: tuple[Bundle, Engine], kind: str) -> None:
    require(kind)
    plan = build_engine(cpu[0], kind, options=PROFILES)
    assert plan.fusion is not None
    prefill, decode = plan.fusion.attentions
    assert (prefill.profile, prefill.fused, decode.profile) == (0, True, 1)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", PLANS)
def test_threads_get_their_own_results(
    cpu: tuple[Bundle, Engine], kind: str, graphs: bool
) -> None:
    require(kind)
    bundle, reference = cpu
    build_engine(bundle, kind)

    def same(number: int) -> bool:
        given = feeds(1 + number % 16, seed=number)
        return near(engine.run(given)["y"], reference.run(given)["y"])

    with (
        open_engine(bundle, kind, cuda_graphs=graphs) as engine,
        ThreadPoolExecutor(6) as threads,
    ):
        assert all(threads.map(same, range(60)))


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("option", ["refittable", "weight_stripped", "version_compatible"])
def test_options_that_need_a_device(cpu: tuple[Bundle, Engine], kind: str, option: str) -> None:
    require(kind)
    bundle, reference = cpu
    plan = build_engine(bundle, kind, options=BuildOptions.checked(**{option: True}))
    with open_engine(bundle, kind, plan=plan) as engine:
        assert near(engine.run(feeds(9))["y"], reference.run(feeds(9))["y"])


@pytest.mark.parametrize("kind", [*PLANS, "ort-cuda", "ort-tensorrt"])
def test_nan_comes_out_as_nan(attention_bundle: BundleMaker, kind: str) -> None:
    require(kind)
    bundle = attention_bundle()
    build_engine(bundle, kind)
    given = feeds(8)
    given["x"][0, 0, 0] = np.nan
    with open_engine(bundle, kind) as engine:
        result = engine.run(given)["y"]
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


@pytest.mark.parametrize("kind", ["ort-cuda", "ort-tensorrt"])
def test_onnxruntime_runs_where_it_was_asked_to(cpu: tuple[Bundle, Engine], kind: str) -> None:
    require(kind)
    bundle, reference = cpu
    with open_engine(bundle, kind) as engine:
        assert next(iter(engine.placement())) == KINDS[kind].provider
        for seq in (33, 33, 1, 64):
            assert near(engine.run(feeds(seq))["y"], reference.run(feeds(seq))["y"])


def test_one_node_runs_each_attention(cpu: tuple[Bundle, Engine]) -> None:
    require("ort-cuda")
    lowered = lower_bundle(cpu[0], "ort-cuda")
    (ran,) = attentions_that_ran(cpu[0], KINDS["ort-cuda"], lowered, feeds(16))
    assert ran.fused, ran.reason
