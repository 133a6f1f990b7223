"""Axes of length zero: computed where the range allows them, refused with the range where not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnport.engines.build import build_engine
from attnport.engines.open import open_engine
from attnport.errors import InputError
from attnport.export.bundle import Bundle

BundleMaker = Callable[..., Bundle]


def with_empty(bundle: Bundle) -> Bundle:
    """The same bundle, whose batch may be empty, too."""
    axes = bundle.manifest.axes | {"batch": (0, 2, 4)}
    return Bundle(bundle.path, bundle.manifest.model_copy(update={"axes": axes}))


def feeds(batch: int, seq: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((batch, seq, 128), np.float32)}


def test_an_empty_batch_gives_an_empty_output(attention_bundle: BundleMaker) -> None:
    pytest.importorskip("onnxruntime", reason="runs ONNX Runtime")
    with open_engine(with_empty(attention_bundle(dtype="float32")), "ort-cpu") as engine:
        assert engine.run(feeds(0, 5))["y"].shape == (0, 5, 128)
        assert np.isfinite(engine.run(feeds(1, 5))["y"]).all()


@pytest.mark.parametrize(("batch", "seq", "axis"), [(0, 5, "batch"), (2, 0, "seq")])
def test_an_empty_axis_that_was_not_declared_is_refused(
    attention_bundle: BundleMaker, batch: int, seq: int, axis: str
) -> None:
    pytest.importorskip("onnxruntime", reason="runs ONNX Runtime")
    with (
        open_engine(attention_bundle(dtype="float32"), "ort-cpu") as engine,
        pytest.raises(InputError, match=f"size 0 at dimension .: axis '{axis}' takes 1 to"),
    ):
        engine.run(feeds(batch, seq))


def test_a_profile_that_begins_at_zero_is_built(attention_bundle: BundleMaker) -> None:
    pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
    plan = build_engine(with_empty(attention_bundle(causal="add")), "tensorrt-rtx")
    assert plan.profiles[0]["batch"] == (0, 2, 4)
    assert plan.fusion is not None
    assert plan.fusion.attentions[0].fused
