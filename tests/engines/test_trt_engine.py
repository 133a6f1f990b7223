"""Running a plan, on a machine that has a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnport.engines import devices, libraries
from attnport.engines.build import build_engine
from attnport.engines.kinds import KINDS, availability
from attnport.engines.open import open_engine
from attnport.engines.trt_engine import TrtEngine
from attnport.errors import BuildError
from attnport.export.bundle import Bundle

BundleMaker = Callable[..., Bundle]


@pytest.mark.skipif(not devices.why_no_cuda(), reason="TensorRT takes the plan where it can run")
def test_a_plan_that_tensorrt_does_not_take_is_refused(attention_bundle: BundleMaker) -> None:
    pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
    if not libraries.installed_version("polygraphy"):
        pytest.skip("runs plans through polygraphy")
    bundle = attention_bundle()
    plan = build_engine(bundle, "tensorrt-rtx")
    # Past the check for a device, which `open_engine` makes first.
    with pytest.raises(BuildError, match=r"does not take the plan .*build again on this machine"):
        TrtEngine(bundle, KINDS["tensorrt-rtx"], plan)


@pytest.mark.gpu
@pytest.mark.skipif(bool(devices.why_no_cuda()), reason=devices.why_no_cuda())
@pytest.mark.parametrize("kind", ["tensorrt", "tensorrt-rtx"])
def test_a_plan_computes_the_graph(attention_bundle: BundleMaker, kind: str) -> None:
    if availability(kind):
        pytest.skip(availability(kind))
    bundle = attention_bundle(causal="add")
    build_engine(bundle, kind)
    values = np.random.default_rng(0).standard_normal((2, 33, 128))
    feeds = {"x": values.astype(np.float16)}
    with open_engine(bundle, kind) as engine, open_engine(bundle, "ort-cpu") as cpu:
        first, second = engine.run(feeds)["y"], engine.run(feeds)["y"]
        expected = cpu.run(feeds)["y"].astype(np.float64)
    np.testing.assert_array_equal(first, second)
    # Both round every one of the four products to fp16 at least once.
    bound = 4 * 128**0.5 * np.finfo(np.float16).eps * np.abs(expected).max()
    assert np.abs(first - expected).max() <= bound
