"""Files of opset 11 to 25, written as each opset has them, with and without shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import HEADS, SIZE, WIDTH, Net, inspect_net, op_types, passed

from attnport.export.fuse import fuse_file

# Each opset that changed what is written, and the ends.
OPSETS = (11, 12, 13, 14, 15, 17, 18, 21, 23, 25)
SIZES = ((2, 5), (1, 1), (3, 8))


class OldNet(Net):
    """A graph whose axes and sizes are attributes or inputs, as its opset has them."""

    def unsqueezed(self, value: str, axis: int) -> str:
        if self.opset < 13:
            return self.op("Unsqueeze", value, axes=[axis])
        return self.op("Unsqueeze", value, [axis])

    def split(self, value: str, count: int) -> list[str]:
        parts = [WIDTH] * count
        if self.opset < 13:
            return self.ops("Split", count, value, axis=2, split=parts)
        return self.ops("Split", count, value, parts, axis=2)

    def size(self, value: str, axis: int) -> str:
        """As PyTorch's first exporters wrote x.size(axis)."""
        return self.op("Gather", self.op("Shape", value), axis, axis=0)


def heads(net: OldNet, rows: str) -> str:
    """view(x.size(0), x.size(1), H, Dh).transpose(1, 2), sizes by Gather and Concat."""
    sizes = [net.unsqueezed(net.size(rows, axis), 0) for axis in (0, 1)]
    shape = net.op("Concat", *sizes, [HEADS], [SIZE], axis=0)
    return net.op("Transpose", net.op("Reshape", rows, shape), perm=[0, 2, 1, 3])


def attention(
    opset: int, mask: str, *, packed: bool = False, axis: int | None = 3
) -> onnx.ModelProto:
    net = OldNet(opset=opset)
    x = net.input("x", ["batch", "seq", WIDTH])
    if packed:
        rows = net.split(net.op("MatMul", x, net.weight(WIDTH, 3 * WIDTH)), 3)
    else:
        rows = [net.op("Add", net.op("MatMul", x, net.weight()), net.vector()) for _ in range(3)]
    q, k, v = (heads(net, part) for part in rows)
    turned = net.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = net.op("Div", net.op("MatMul", q, turned), 4.0)
    scores = MASKS[mask](net, scores)
    weights = net.op("Softmax", scores, **({} if axis is None else {"axis": axis}))
    context = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    sizes = [net.unsqueezed(net.size(x, i), 0) for i in (0, 1)]
    joined = net.op("Reshape", context, net.op("Concat", *sizes, [WIDTH], axis=0))
    return net.model(net.op("Add", net.op("MatMul", joined, net.weight()), net.vector()))


def unmasked(net: OldNet, scores: str) -> str:
    return scores


def hidden(net: OldNet, scores: str) -> str:
    """-inf where a bool input says so, which may be all of a row."""
    mask = net.input("mask", ["batch", "seq", "seq"], "bool")
    return net.op("Where", net.unsqueezed(mask, 1), -np.inf, scores)


def bert(net: OldNet, scores: str) -> str:
    """(1 - m)·(-10000) of (B,T), as BERT has it."""
    mask = net.input("mask", ["batch", "seq"], "int64")
    wide = net.unsqueezed(net.unsqueezed(mask, 1), 2)
    number = net.op("Cast", wide, to=TensorProto.FLOAT)
    return net.op("Add", scores, net.op("Mul", net.op("Sub", 1.0, number), -10000.0))


def causal(net: OldNet, scores: str) -> str:
    count = net.size("x", 1)
    numbers = net.op("Range", 0, count, 1)
    later = net.op("Less", net.unsqueezed(numbers, 1), numbers)
    return net.op("Where", later, -np.inf, scores)


MASKS = {"none": unmasked, "hidden": hidden, "bert": bert, "causal": causal}


def feeds_of(model: onnx.ModelProto, b: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    found: dict[str, np.ndarray] = {"x": normal((b, n, WIDTH))}
    for value in model.graph.input[1:]:
        kind = value.type.tensor_type.elem_type
        if kind == TensorProto.BOOL:
            found[value.name] = rng.random((b, n, n)) < 0.5
            found[value.name][0, n // 2] = n > 1
        else:
            found[value.name] = np.arange(n)[None] < rng.integers(1, n + 1, (b, 1))
            found[value.name] = found[value.name].astype(np.int64)
    return found


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("opset", OPSETS)
def test_numbers(opset: int, mask: str) -> None:
    before = attention(opset, mask, packed=opset % 2 == 0)
    after, done = passed(before)
    assert done.write.changed == 1, done
    assert done.merge.changed == 1, done
    assert after.opset_import[0].version == opset
    for b, n in SIZES:
        assert_same_numbers(before, after, feeds_of(before, b, n))


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_a_second_run_changes_nothing(opset: int) -> None:
    once, _ = passed(attention(opset, "hidden"))
    twice, done = passed(once)
    assert done.changed == 0
    assert op_types(twice) == op_types(once)


@pytest.mark.parametrize("opset", [11, 12])
def test_the_old_softmax_over_all_axes_is_no_attention(opset: int) -> None:
    """Without an axis it runs over axis 1 and all after it, until opset 13."""
    before = attention(opset, "none", axis=None)
    after, done = passed(before)
    assert done.write.changed == 0
    assert "over axis 1" in done.write.notes[0]
    (info,) = inspect_net(after).attentions
    assert not info.recognised
    assert "Softmax" in op_types(after)


def without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every symbol of the inputs without its name."""
    for value in model.graph.input:
        kind, shape = value.type.tensor_type.elem_type, value.type.tensor_type.shape
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in shape.dim]
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, sizes))
    return model


@pytest.mark.parametrize("mask", MASKS)
def test_dimensions_without_a_name(mask: str) -> None:
    before = without_names(attention(18, mask))
    after, done = passed(before)
    assert done.write.changed == done.merge.changed == 1, done
    for b, n in SIZES:
        assert_same_numbers(before, after, feeds_of(before, b, n))


def test_an_input_without_a_shape(tmp_path: Path) -> None:
    before = attention(18, "none")
    before.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(before, tmp_path / "in.onnx")
    done = fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not done.complete
    assert "shape" in done.outcomes[0].what
    assert "refuses the file, before and after" in done.passes[-1].notes[0]
    after = onnx.load(tmp_path / "out.onnx")
    assert_same_numbers(before, after, feeds_of(before, 2, 5))


def test_a_dimension_that_is_a_sum_of_others() -> None:
    """A cache: the mask is as long as past and new keys together."""
    net = OldNet(opset=18)
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = (heads(net, net.op("MatMul", x, net.weight())) for _ in range(3))
    past = [net.input(name, ["batch", HEADS, "past", SIZE]) for name in ("past_k", "past_v")]
    mask = net.input("mask", ["batch", 1, "seq", "past + seq"])
    k, v = (net.op("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    scores = net.op("Mul", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2])), 0.25)
    weights = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
    context = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    before = net.model(net.op("Reshape", context, [0, 0, WIDTH]))
    (info,) = inspect_net(before).attentions
    assert info.mask == "additive"
    assert info.recognised
    after, done = passed(before)
    assert done.write.changed == 1
    feeds = {
        "x": normal((2, 3, WIDTH)), "past_k": normal((2, HEADS, 4, SIZE), seed=1),
        "past_v": normal((2, HEADS, 4, SIZE), seed=2), "mask": normal((2, 1, 3, 7), seed=3),
    }  # fmt: skip
    assert_same_numbers(before, after, feeds)


def test_a_custom_operator_before_the_attention() -> None:
    net = OldNet(opset=18)
    x = net.input("x", ["batch", "seq", WIDTH])
    (made,) = net.ops("Mystery", 1, x, domain="our.operators")
    q, k, v = (heads(net, net.op("MatMul", made, net.weight())) for _ in range(3))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    context = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    before = net.model(context)
    after, done = passed(before)
    assert "Mystery" in op_types(after)
    assert "shape" in done.write.notes[0]
