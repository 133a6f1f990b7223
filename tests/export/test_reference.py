"""The float64 reference: what it is made of, and what it says of modules that are at fault."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from attnport.axes import Axis
from attnport.errors import ModuleError
from attnport.export.case_properties import Property, possible_properties
from attnport.export.memory_need import MemoryNeed
from attnport.export.module_forms import module_in_dtype
from attnport.export.records import TensorSpec
from attnport.export.reference import Outputs, Reference

B, N, D = 3, 6, 8
AXES = {axis.name: axis for axis in (Axis("batch", 1, 2, 8), Axis("seq", 1, 6, 64))}
X = TensorSpec(name="x", dtype="float32", shape=("batch", "seq", D))
Y = TensorSpec(name="y", dtype="float32", shape=("batch", "seq", D))


class Attention(nn.Module):
    """One head; `causal` by shape, `leak` lets each token see the batch's first row."""

    def __init__(self, *, causal: bool = False, leak: float = 0.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.causal, self.leak = causal, leak

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / D**0.5
        if self.causal:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        context: torch.Tensor = torch.softmax(scores, -1) @ v
        return context + self.leak * x[:1] if self.leak else context


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((B, N, D)).astype(np.float32)}


def computed(module: nn.Module, dtype: str = "float32") -> tuple[Reference, Outputs]:
    torch.manual_seed(0)
    reference = Reference(module_in_dtype(module, dtype), dtype, [Y])
    feeds = {name: x.astype(dtype) for name, x in inputs().items()}
    return reference, reference.compute(feeds, ["x"], 0)


def properties(module: nn.Module) -> set[str]:
    reference, outputs = computed(module)
    sizes = {"batch": B, "seq": N}
    return set(reference.properties(inputs(), outputs.arrays, [X], AXES, sizes, 5))


BATCH = {"alone:batch", "permuted:batch", "beside-nan:batch", "future:batch"}


def test_properties_are_those_of_the_module() -> None:
    assert properties(Attention()) == BATCH | {"permuted:seq"}
    assert properties(Attention(causal=True)) == BATCH | {"future:seq"}


def test_a_module_that_mixes_its_batch_has_no_batch_property() -> None:
    found = properties(Attention(leak=1e-3))
    assert not found & (
        BATCH - {"future:batch"}
    )  # what comes before is not changed by what follows
    assert "permuted:seq" in found


def test_changed_inputs_and_what_is_expected_of_them() -> None:
    x, y = inputs()["x"], np.arange(B * N * D, dtype=np.float64).reshape(B, N, D)
    alone = Property.parse("alone:batch")
    assert alone.changed({"x": x}, [X], 0)["x"].shape == (1, N, D)
    assert np.array_equal(alone.expected({"y": y}, [Y], 0)["y"], y[-1:])
    beside = Property.parse("beside-nan:batch")
    assert np.isnan(beside.changed({"x": x}, [X], 0)["x"][0]).all()
    assert np.array_equal(beside.compared({"y": y}, [Y])["y"], y[1:])
    future = Property.parse("future:seq")
    changed = future.changed({"x": x}, [X], 0)["x"]
    assert np.array_equal(changed[:, : N // 2], x[:, : N // 2])
    assert not np.isclose(changed[:, N // 2 :], x[:, N // 2 :]).all()
    keys = TensorSpec(name="mask", dtype="bool", shape=("seq", "seq"), role="mask")
    mask = np.arange(N * N).reshape(N, N)
    permuted = Property.parse("permuted:seq").changed({"mask": mask}, [keys], 3)["mask"]
    assert np.array_equal(np.sort(permuted.ravel()), mask.ravel())
    assert np.array_equal(np.diag(permuted) % (N + 1), np.zeros(N))  # the diagonal stays one


def test_one_row_has_no_property_of_rows() -> None:
    assert possible_properties([X], [Y], {"batch": 1, "seq": 1}, AXES) == []


class DropoutLeftOn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5)  # training=True is its default


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * random.random()


def test_dropout_that_was_left_on_is_found_and_named() -> None:
    with pytest.raises(ModuleError, match="not deterministic") as caught:
        computed(DropoutLeftOn())
    assert "dropout" in str(caught.value) or "bernoulli" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


class DropoutOfMany(nn.Module):
    """Leaves one token as it is, as dropout does by chance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) if x.shape[1] > 1 else x


def test_dropout_that_the_smallest_case_does_not_show_is_found_in_the_next() -> None:
    module = module_in_dtype(DropoutOfMany(), "float32")
    reference = Reference(module, "float32", [Y])
    reference.compute({"x": inputs()["x"][:1, :1]}, ["x"], 0)
    with pytest.raises(ModuleError, match="not deterministic"):
        reference.compute(inputs(), ["x"], 0)


def test_a_module_that_changes_by_itself_is_found() -> None:
    with pytest.raises(ModuleError, match="changes its own state"):
        computed(Counting())


class FailsInHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float16:
            raise RuntimeError("no kernel for Half")
        return x


class NanInHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1e5 * 1e5 / 1e10


def test_a_module_that_fails_in_half_precision_is_said_to_be_at_fault() -> None:
    known = computed(FailsInHalf(), "float16")[1].references["y"]
    assert known.eager is None
    assert "module itself fails in float16 (no kernel for Half)" in known.note
    assert "not the engine's" in known.note
    overflowing = computed(NanInHalf(), "float16")[1].references["y"]
    assert overflowing.eager is None
    assert overflowing.note == ""


def test_a_module_that_fails_in_float64_is_refused() -> None:
    class Never(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("never")

    with pytest.raises(ModuleError, match=r"the module itself fails on x .*never"):
        computed(Never())


class AsksForNumbers(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(x.abs().max() > 0)


@pytest.mark.parametrize("kind", [Attention, AsksForNumbers])
def test_the_memory_need_is_no_less_than_the_scores(kind: type[Attention]) -> None:
    need = MemoryNeed(kind(), [X])
    small, large = ({"batch": 2, "seq": n} for n in (8, 256))
    assert need.bytes_at(large) >= 2 * 8 * 2 * 256 * 256  # scores and softmax, in float64
    assert need.weight_bytes < need.bytes_at(small) < need.bytes_at(large)
