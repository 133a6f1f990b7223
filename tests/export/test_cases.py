"""Cases: every kind that the specification names, the same from the same seed, within a budget."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.export.case_masks import FURTHER_MASKS, MASKS, applies, visible
from attnport.export.case_numbers import MAGNITUDES, array
from attnport.export.case_sizes import further_sizes, largest_sizes
from attnport.export.cases import CasePlan, plan_cases, plan_further_cases, within_budget
from attnport.export.records import Dtype, Role, TensorSpec

AXES = {axis.name: axis for axis in (Axis("batch", 1, 2, 8), Axis("seq", 1, 16, 64))}
Dims = tuple[int | str, ...]
# A 1 in each position that a mask may have it in, and none.
MASK_SHAPES: tuple[Dims, ...] = (
    ("batch", 4, "seq", "seq"),
    (1, 4, "seq", "seq"),
    ("batch", 1, "seq", "seq"),
    ("batch", 4, 1, "seq"),
    ("batch", 4, "seq", 1),
    (1, 1, "seq", "seq"),
    ("batch", 1, 1, "seq"),
    ("batch", "seq", "seq"),
    ("seq", "seq"),
    ("batch", "seq"),
    ("seq",),
)


def spec(
    name: str = "x", dtype: Dtype = "float32", shape: Dims = ("batch", "seq", 8),
    role: Role = "activation",
) -> TensorSpec:  # fmt: skip
    return TensorSpec(name=name, dtype=dtype, shape=shape, role=role)


def drawn(kind: str, shape: Dims, sizes: tuple[int, ...]) -> np.ndarray:
    mask = spec("mask", "bool", shape, "mask")
    return visible(mask, sizes, kind, np.random.default_rng(0))


@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize("kind", [*MASKS, *FURTHER_MASKS])
def test_every_kind_of_mask_in_every_broadcast_form(kind: str, shape: Dims) -> None:
    sizes = tuple(dim if isinstance(dim, int) else {"batch": 3, "seq": 7}[dim] for dim in shape)
    mask = drawn(kind, shape, sizes)
    assert (mask.shape, mask.dtype) == (sizes, np.dtype(bool))
    dead = ~mask.any(-1)
    if kind == "all-dead":
        assert dead.all()
    elif kind == "dead-row":
        assert dead.any()
    elif kind != "same-keys":
        assert not dead.any()


def test_causal_and_block_hide_what_they_say() -> None:
    shape: Dims = ("batch", 1, "seq", "seq")
    assert np.array_equal(drawn("causal", shape, (2, 1, 5, 5))[1, 0], np.tri(5).astype(bool))
    block = drawn("block", shape, (1, 1, 6, 6))[0, 0]
    assert block.sum() == 12
    assert not block[0, 2]
    assert block[0, 1]


def test_padding_hides_one_end() -> None:
    shape: Dims = ("batch", 1, 1, "seq")
    right, left = (drawn(f"{side}-padding", shape, (4, 1, 1, 9)) for side in ("right", "left"))
    assert (np.diff(right.astype(int), axis=-1) <= 0).all()
    assert (np.diff(left.astype(int), axis=-1) >= 0).all()
    assert not right.all()


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_same_masks_are_constant_along_their_dimension(place: int) -> None:
    kind = {1: "same-keys", 2: "same-queries", 3: "same-heads", 4: "same-batch"}[place]
    mask = drawn(kind, ("batch", 4, "seq", "seq"), (3, 4, 5, 5))
    assert (mask == np.take(mask, [0], -place)).all()
    assert not mask.all()
    assert not applies(kind, [spec(shape=(1,) * 4)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_magnitudes_are_finite_and_what_they_say(magnitude: str, dtype: Dtype) -> None:
    x = array(
        spec(dtype=dtype), {"batch": 2, "seq": 5}, mask="none", magnitude=magnitude,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    wide = x.astype(np.float64)
    assert np.isfinite(wide).all()
    if magnitude == "constant":
        assert (wide == wide[..., :1]).all()
    elif magnitude == "growing":
        first, last = np.abs(wide[:, 0]).mean(), np.abs(wide[:, -1]).mean()
        assert first < last
    elif magnitude == "one-hot":
        assert ((wide == 1).sum(-1) == 1).all()
        assert ((wide != 0).sum(-1) == 1).all()
    elif magnitude == "denormal":
        assert 0 < np.abs(wide).max() < float(ml_dtypes.finfo(x.dtype).smallest_normal)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fill", ["-inf", "finfo-min", "-10000"])
def test_a_bias_hides_by_each_of_three_numbers(fill: str, dtype: Dtype) -> None:
    bias = array(
        spec("bias", dtype, ("batch", 1, "seq", "seq"), "bias"), {"batch": 2, "seq": 8},
        mask="random", fill=fill, rng=np.random.default_rng(0),
    )  # fmt: skip
    least = float(bias.astype(np.float64).min())
    expected = {"-inf": -np.inf, "finfo-min": float(ml_dtypes.finfo(bias.dtype).min)}
    assert least == expected.get(fill, float(np.asarray(-10000.0).astype(bias.dtype)))


def further(*specs: TensorSpec) -> dict[str, CasePlan]:
    return {plan.name: plan for plan in plan_further_cases(specs, AXES)}


def test_further_cases_vary_masks_numbers_sizes_and_fills() -> None:
    plans = further(spec(), spec("bias", "float16", ("batch", 1, "seq", "seq"), "bias"))
    assert {p.magnitude for p in plans.values()} == set(MAGNITUDES)
    assert {p.fill for p in plans.values()} == {"-inf", "finfo-min", "-10000"}
    assert {"block", "all-dead", "same-keys"} <= {p.mask for p in plans.values()}
    assert {p.sizes["seq"] for p in plans.values()} >= {15, 17, 64}
    first = {plan.name for plan in plan_cases([spec()], AXES)}
    assert not first & set(plans)


def test_a_model_without_masks_and_numbers_has_only_sizes() -> None:
    plans = further(spec("ids", "int64", ("batch", "seq"), "token_ids"))
    assert plans
    assert all(p.mask == "none" and p.magnitude == "normal" for p in plans.values())


def test_the_same_seed_gives_the_same_bits() -> None:
    specs = [spec(), spec("mask", "bool", ("batch", 1, 1, "seq"), "mask")]
    for a, b in zip(plan_further_cases(specs, AXES), plan_further_cases(specs, AXES), strict=True):
        pairs = zip(a.inputs(specs).values(), b.inputs(specs).values(), strict=True)
        assert all(x.tobytes() == y.tobytes() for x, y in pairs)
    other = plan_further_cases(specs, AXES, seed=1)[0]
    assert other.seed != plan_further_cases(specs, AXES)[0].seed


@pytest.mark.parametrize("budget", [1, 40, 4096, 1 << 30])
def test_the_largest_sizes_are_the_largest_that_fit(budget: int) -> None:
    def cost(sizes: dict[str, int]) -> int:
        return sizes["batch"] * sizes["seq"] ** 2

    found = largest_sizes(AXES, lambda sizes: cost(sizes) <= budget)
    assert found is not None
    assert cost(found) <= budget
    if budget == 1 << 30:
        assert found == {"batch": 8, "seq": 64}
    assert largest_sizes(AXES, lambda sizes: False) is None


def test_further_sizes_hold_primes_and_neighbours_of_opt() -> None:
    sizes = further_sizes(AXES)
    assert sizes["high-primes"] == {"batch": 3, "seq": 17}
    assert {"seq-15", "seq-64"} <= set(sizes)


def test_caps_and_budgets_leave_out_and_say_so() -> None:
    plans = plan_cases([spec()], AXES, caps={"seq": 4})
    assert max(plan.sizes["seq"] for plan in plans) == 4
    kept, left_out = within_budget(plans, [spec()], [spec("y")], budget_bytes=2000)
    assert kept
    assert len(kept) + len(left_out) == len(plans)
    with pytest.raises(UsageError, match="no axis 'sea' to cap"):
        plan_cases([spec()], AXES, caps={"sea": 4})
    with pytest.raises(UsageError, match="a cap of 0"):
        plan_further_cases([spec()], AXES, caps={"seq": 0})


def test_a_dimension_that_is_no_axis_is_refused() -> None:
    with pytest.raises(UsageError, match="dimension 'time' of input x is no axis"):
        plan_cases([spec()], AXES)[0].inputs([spec(shape=("time", 8))])
