"""Masks that are added: the same numbers, and which ones stay as they are."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import HEADS, WIDTH, Net, passed, self_attention, to_ir

from attnport.export.added_masks import add_masks


def added(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    found = to_ir(onnx.shape_inference.infer_shapes(model, data_prop=True))
    changed = add_masks(found.graph).changed
    lowered = ir.serde.serialize_model(found)
    onnx.checker.check_model(lowered, full_check=True)
    return lowered, changed


def attention(
    shape: list[int | str],
    *,
    dtype: str = "float32",
    hidden: bool = False,
    fill: float = -float("inf"),
) -> onnx.ModelProto:
    def hide(net: Net, scores: str) -> str:
        mask = net.input("mask", shape, "bool")
        return net.op("Where", mask, *((fill, scores) if hidden else (scores, fill)))

    return passed(self_attention(hide=hide, dtype=dtype))[0]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("shape", [["batch", 1, "seq", "seq"], ["seq", "seq"]])
def test_the_numbers_stay(shape: list[int | str], hidden: bool) -> None:
    model = attention(shape, hidden=hidden)
    lowered, changed = added(model)
    assert changed == 1
    sizes = tuple({"batch": 2, "seq": 5}.get(str(dim), 1) for dim in shape)
    mask = normal(sizes) > 0
    mask[..., 2, :] = hidden  # a dead row
    assert_same_numbers(model, lowered, {"x": normal((2, 5, WIDTH)), "mask": mask})
    assert added(lowered)[1] == 0


@pytest.mark.parametrize(
    "model",
    [
        attention(["batch", HEADS, "seq", "seq"]),
        attention(["batch", 1, "seq", "seq"], dtype="float16"),
        attention(["batch", 1, "seq", "seq"], fill=-10000.0),
        passed(self_attention())[0],
    ],
    ids=["a mask for each head", "half precision", "a finite number", "no mask"],
)
def test_others_stay(model: onnx.ModelProto) -> None:
    assert added(model)[1] == 0
