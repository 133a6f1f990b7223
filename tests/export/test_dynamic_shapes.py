"""From names of axes to torch's dynamic shapes; what does not fit is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnport.axes import Axis
from attnport.errors import ModuleError, UsageError
from attnport.export.dynamic_shapes import Example, bind_example, torch_shapes

AXES = {"batch": Axis("batch", 1, 2, 4), "seq": Axis("seq", 1, 5, 32)}
SHAPE = {0: "batch", 1: "seq"}


class Two(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None) -> Any:
        return x


class Many(nn.Module):
    def forward(self, *tensors: Tensor, **named: Tensor) -> Any:
        return tensors


class OfList(nn.Module):
    def forward(self, xs: list[Tensor]) -> Any:
        return xs


def bind(
    *args: Any, shapes: Any = (SHAPE,), module: nn.Module | None = None, **kwargs: Any
) -> Example:
    return bind_example(module or Two(), args, kwargs, shapes, AXES)


def x(batch: int = 2, seq: int = 5) -> Tensor:
    return torch.zeros(batch, seq, 8)


def test_one_entry_for_each_argument() -> None:
    example = bind(x(), torch.ones(2, 1, 1, 5), shapes=(SHAPE, {0: "batch", 3: "seq"}))
    assert example.names == ("x", "mask")
    assert example.dims == {"x": SHAPE, "mask": {0: "batch", 3: "seq"}}


@pytest.mark.parametrize(
    "shapes",
    [
        (SHAPE,), [SHAPE], {"x": SHAPE}, (("batch", "seq", None),), ({0: "batch", -2: "seq"},),
        (SHAPE, None), ({0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")},),
    ],
)  # fmt: skip
def test_the_forms_that_torch_takes(shapes: Any) -> None:
    example = bind(x(), torch.ones(5), shapes=shapes)
    assert example.dims == {"x": SHAPE, "mask": {}}


def test_keyword_arguments() -> None:
    example = bind(x=x(), bias=torch.zeros(5, 5), shapes={"x": SHAPE, "bias": {1: "seq"}})
    assert example.args == ()
    assert set(example.kwargs) == {"x", "bias"}
    assert example.dims == {"x": SHAPE, "bias": {1: "seq"}}


def test_arguments_that_are_no_tensors_are_passed_on() -> None:
    example = bind(x(), None, shapes=(SHAPE, None))
    assert example.names == ("x",)
    assert example.args[1] is None


def test_variable_arguments() -> None:
    example = bind(x(), x(), extra=x(), shapes=((SHAPE, SHAPE), {"extra": SHAPE})[0:1],
                   module=Many())  # fmt: skip
    assert example.names == ("tensors_0", "tensors_1", "extra")
    assert example.dims["tensors_1"] == SHAPE


@pytest.mark.parametrize(("batch", "seq"), [(1, 5), (2, 1), (1, 1)])
def test_sizes_of_one_are_repeated_where_the_axis_goes_further(batch: int, seq: int) -> None:
    """torch.export takes a size of 1 for a constant."""
    given = torch.rand(batch, seq, 8)
    (tensor,) = bind(given).args
    assert tensor.shape == (max(2, batch), max(2, seq), 8)
    assert torch.equal(tensor[:batch, :seq], given)


def test_sizes_of_one_stay_where_the_axis_is_fixed_at_one() -> None:
    axes = {**AXES, "batch": Axis("batch", 1, 1, 1)}
    example = bind_example(Two(), (x(1),), {}, (SHAPE,), axes)
    assert example.args[0].shape == (1, 5, 8)


def test_torch_gets_a_dim_for_each_axis_that_is_not_fixed() -> None:
    axes = {**AXES, "batch": Axis("batch", 2, 2, 2)}
    example = bind_example(Two(), (x(), torch.ones(5)), {}, (SHAPE, {0: "seq"}), axes)
    shapes = torch_shapes(example, axes)
    assert set(shapes) == {"x", "mask"}
    assert set(shapes["x"]) == {1}
    assert shapes["x"][1] is shapes["mask"][0]
    dim = shapes["x"][1]
    assert (dim.__name__, dim.min, dim.max) == ("seq", 1, 32)


def test_torch_may_find_the_ranges_itself() -> None:
    shapes = torch_shapes(bind(x()), AXES, automatic=True)
    assert all(dim is torch.export.Dim.AUTO for dim in shapes["x"].values())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a name without a range": (
        {"args": (x(),), "shapes": ({0: "batch", 1: "length"},)},
        UsageError, r"axis 'length' of x has no range: give axes=\{'length': \(min, opt, max\)\}",
    ),
    "an axis that no input has": (
        {"args": (x(),), "shapes": ({0: "batch"},)}, UsageError, "axes seq are given but no input",
    ),
    "an unknown input": (
        {"args": (x(),), "shapes": {"y": SHAPE}}, UsageError,
        "names 'y', which is no tensor among the example inputs: x",
    ),
    "too many entries": (
        {"args": (x(),), "shapes": (SHAPE, SHAPE)}, UsageError, "2 entries for 1 inputs",
    ),
    "a dimension that there is not": (
        {"args": (x(),), "shapes": ({0: "batch", 3: "seq"},)}, UsageError,
        "dimension 3 of x, which has 3",
    ),
    "too few arguments": ({"args": (), "shapes": ()}, ModuleError, r"missing.*forward\(x"),
    "too many arguments": (
        {"args": (x(), x(), x()), "shapes": (SHAPE,)}, ModuleError, r"too many.*forward\(x",
    ),
    "an unknown keyword": (
        {"args": (x(),), "kwargs": {"maks": x()}, "shapes": (SHAPE,)}, ModuleError, "maks",
    ),
    "no tensor": ({"args": (3,), "shapes": ()}, ModuleError, "no example input is a tensor"),
    "a list of tensors": (
        {"args": ([x()],), "shapes": ((SHAPE,),), "module": OfList()}, ModuleError,
        "forward's xs is a list: inputs must be tensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    given, error, message = REFUSED[what]
    kwargs = given.get("kwargs", {})
    module = given.get("module", Two())
    with pytest.raises(error, match=message):
        bind_example(module, given["args"], kwargs, given["shapes"], AXES)


def test_an_example_of_another_size_than_the_fixed_one() -> None:
    axes = {**AXES, "seq": Axis("seq", 7, 7, 7)}
    with pytest.raises(UsageError, match="fixed at 7, and dimension 1 of the example x has 5"):
        bind_example(Two(), (x(),), {}, (SHAPE,), axes)


def test_an_example_outside_of_the_range_is_still_an_example() -> None:
    """Torch refuses a size outside of a Dim: the sentence names the axis, not torch's symbol."""
    axes = {**AXES, "seq": Axis("seq", 1, 2, 4)}
    with pytest.raises(UsageError, match=r"seq.*1.*4.*5"):
        bind_example(Two(), (x(),), {}, (SHAPE,), axes)


def test_two_inputs_that_share_one_tensor_are_both_dynamic() -> None:
    same = x(1)
    example = bind(same, same, shapes=(SHAPE, SHAPE))
    assert [tensor.shape[0] for tensor in example.args] == [2, 2]


def test_inputs_that_share_an_axis_must_agree_on_its_size() -> None:
    with pytest.raises(UsageError, match=r"seq.*5.*6"):
        bind(x(seq=5), torch.zeros(2, 6, 8), shapes=(SHAPE, SHAPE))


def test_a_tensor_that_is_given_twice_is_two_inputs() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + 2 * y

    x = torch.ones(2, 3)
    axes = {"batch": AXES["batch"]}
    example = bind_example(Sum(), (x, x), {}, ({0: "batch"}, {0: "batch"}), axes)
    assert example.args[0] is not example.args[1]
