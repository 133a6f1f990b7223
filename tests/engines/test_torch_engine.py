"""The module itself as an engine, in each of its forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from attnport.engines.open import open_engine
from attnport.errors import EngineUnavailableError, ModuleError, UsageError
from attnport.export.bundle import Bundle

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="runs PyTorch")

WIDTH = 128
BundleMaker = Callable[..., Bundle]


class HandWritten(torch.nn.Module):
    """One head without projections; `attention_form` chooses how it is computed."""

    def __init__(self, attention_form: str | None = "eager") -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(WIDTH))
        if attention_form is not None:
            self.attention_form = attention_form

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        q = (x @ self.weight)[:, None]
        if getattr(self, "attention_form", "eager") == "sdpa":
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        else:
            y = torch.softmax(q @ q.transpose(-1, -2) / math.sqrt(WIDTH), -1) @ q
        return {"y": y[:, 0], "weights": None}


class CallsSdpa(torch.nn.Module):
    """Somebody else's module, which calls SDPA as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x[:, None]
        y: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return y[:, 0]


def sample(dtype: type = np.float32) -> dict[str, np.ndarray]:
    values = np.random.default_rng(0).standard_normal((2, 5, WIDTH))
    return {"x": values.astype(dtype)}


@pytest.mark.parametrize("kind", ["torch-eager", "torch-sdpa"])
def test_both_forms_compute_the_same(attention_bundle: BundleMaker, kind: str) -> None:
    bundle, module, feeds = attention_bundle(dtype="float32"), HandWritten(), sample()
    with open_engine(bundle, kind, module=module, threads=1) as engine:
        result = engine.run(feeds)["y"]
        assert engine.placement() == {"cpu": 1}
    expected = module.double()(torch.from_numpy(feeds["x"]).double())["y"].detach().numpy()
    bound = 4 * WIDTH * np.finfo(np.float32).eps * np.abs(expected).max()
    assert np.abs(result - expected).max() <= bound


def test_the_module_is_left_as_it_is(attention_bundle: BundleMaker) -> None:
    module, threads = HandWritten().train(), torch.get_num_threads()
    with open_engine(attention_bundle(), "torch-sdpa", module=module, threads=1) as engine:
        result = engine.run(sample(np.float16))["y"]
    assert result.dtype == np.float16
    assert (module.attention_form, module.training) == ("eager", True)
    assert module.weight.dtype == torch.float32
    assert torch.get_num_threads() == threads
    assert torch.backends.mha.get_fastpath_enabled()


def test_bfloat16_goes_in_and_out_by_its_bits(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="bfloat16")
    with open_engine(bundle, "torch-eager", module=HandWritten()) as engine:
        result = engine.run(sample(ml_dtypes.bfloat16))["y"]
    assert result.dtype == ml_dtypes.bfloat16
    assert np.isfinite(result.astype(np.float32)).all()


def test_a_module_that_calls_sdpa_is_its_own_sdpa_form(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32")
    with open_engine(bundle, "torch-sdpa", module=CallsSdpa()) as engine:
        assert engine.run(sample())["y"].shape == (2, 5, WIDTH)


def test_multi_head_attention_of_torch_has_an_sdpa_form(attention_bundle: BundleMaker) -> None:
    class SelfAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
            return result

    bundle = attention_bundle(dtype="float32")
    with open_engine(bundle, "torch-sdpa", module=SelfAttention()) as engine:
        assert engine.run(sample())["y"].shape == (2, 5, WIDTH)


def test_a_module_without_sdpa_form_is_refused(attention_bundle: BundleMaker) -> None:
    with pytest.raises(EngineUnavailableError, match="HandWritten has no SDPA form"):
        open_engine(attention_bundle(), "torch-sdpa", module=HandWritten(None))


def test_the_module_is_needed(attention_bundle: BundleMaker) -> None:
    with pytest.raises(UsageError, match="give module="):
        open_engine(attention_bundle(), "torch-eager")


def test_another_module_than_the_bundle_came_from(attention_bundle: BundleMaker) -> None:
    class TwoResults(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    with (
        open_engine(attention_bundle(dtype="float32"), "torch-eager", module=TwoResults()) as made,
        pytest.raises(ModuleError, match="returned 2 tensors, and the bundle has 1 outputs"),
    ):
        made.run(sample())


def test_a_closed_engine_says_so(attention_bundle: BundleMaker) -> None:
    engine = open_engine(attention_bundle(dtype="float32"), "torch-eager", module=HandWritten())
    engine.close()
    assert engine.placement() == {}
    with pytest.raises(UsageError, match="was closed"):
        engine.run(sample())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_compiled(attention_bundle: BundleMaker) -> None:
    from attnport.engines.kinds import availability

    if availability("torch-compile"):
        pytest.skip(availability("torch-compile"))
    bundle, feeds = attention_bundle(dtype="float32"), sample()
    with (
        open_engine(bundle, "torch-compile", module=HandWritten()) as compiled,
        open_engine(bundle, "torch-eager", module=HandWritten()) as eager,
    ):
        expected = eager.run(feeds)["y"]
        result = compiled.run(feeds)["y"]
    bound = 4 * WIDTH * np.finfo(np.float32).eps * np.abs(expected).max()
    assert np.abs(result - expected).max() <= bound
