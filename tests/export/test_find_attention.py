"""Every attention of a graph is found, however it was written; and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.export.nets import (
    HEADS,
    SIZE,
    WIDTH,
    Net,
    causal_visible,
    inspect_net,
    merge_heads,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
    split_heads,
    square,
    turn,
)

from attnport.export.records import AttentionInfo

SCALE = 1 / math.sqrt(SIZE)


def only(model: onnx.ModelProto) -> AttentionInfo:
    (found,) = inspect_net(model).attentions
    return found


def products(net: Net, q: str, k: str) -> str:
    return net.op("MatMul", q, turn(net, k))


SCORES: dict[str, Callable[[Net, str, str], str]] = {
    "Mul after": scaled_product,
    "Mul after, on the left": lambda n, q, k: n.op("Mul", SCALE, products(n, q, k)),
    "Div after": lambda n, q, k: n.op("Div", products(n, q, k), math.sqrt(SIZE)),
    "Mul on Q": lambda n, q, k: products(n, n.op("Mul", q, SCALE), k),
    "Div on Q": lambda n, q, k: products(n, n.op("Div", q, math.sqrt(SIZE)), k),
    "Mul on K": lambda n, q, k: products(n, q, n.op("Mul", k, SCALE)),
    "Mul on K transposed": lambda n, q, k: n.op("MatMul", q, n.op("Mul", turn(n, k), SCALE)),
    "the root on both": lambda n, q, k: products(
        n, n.op("Mul", q, math.sqrt(SCALE)), n.op("Mul", k, math.sqrt(SCALE))
    ),
    "Mul on Q and after": lambda n, q, k: n.op(
        "Mul", products(n, n.op("Mul", q, SCALE / 2), k), 2.0
    ),
    "Div by a Sqrt of a constant": lambda n, q, k: n.op(
        "Div", products(n, q, k), n.op("Sqrt", float(SIZE))
    ),
    "Div by the Sqrt of the head size from Shape": lambda n, q, k: n.op(
        "Div", products(n, q, k), _root_of_shape(n, q)
    ),
    "Div of Q by the Sqrt of the head size from Shape": lambda n, q, k: products(
        n, n.op("Div", q, _root_of_shape(n, q)), k
    ),
    "the root of the Sqrt from Shape on both": lambda n, q, k: products(
        n, n.op("Div", q, _fourth_root(n, q)), n.op("Div", k, _fourth_root(n, k))
    ),
    "a factor with axes": lambda n, q, k: n.op(
        "Mul", products(n, q, k), np.full((1, 1, 1, 1), SCALE, np.float32)
    ),
    "one by one": lambda n, q, k: n.op("Identity", scaled_product(n, q, k)),
}


def _root_of_shape(net: Net, value: str) -> str:
    """√Dh, as `math.sqrt(q.size(-1))` traces."""
    size = net.op("Squeeze", net.op("Shape", value, start=3, end=4), [0])
    return net.op("Sqrt", net.op("Cast", size, to=TensorProto.FLOAT))


def _fourth_root(net: Net, value: str) -> str:
    return net.op("Sqrt", _root_of_shape(net, value))


@pytest.mark.parametrize("written", SCORES)
def test_scale_wherever_it_stands(written: str) -> None:
    found = only(self_attention(score=SCORES[written]))
    assert (found.recognised, found.reason, found.source) == (True, "", "pattern")
    assert found.scale == pytest.approx(SCALE, rel=1e-6)
    assert (found.heads, found.kv_heads, found.head_size) == (HEADS, HEADS, SIZE)
    assert (found.mask, found.causal, found.dead_rows) == ("none", False, False)


def test_without_a_scale() -> None:
    found = only(self_attention(score=products))
    assert (found.recognised, found.scale) == (True, 1.0)


HIDDEN = np.array(-np.inf, np.float32)


def _bool_input(net: Net) -> str:
    return net.input("mask", ["batch", 1, "seq", "seq"], "bool")


def _float_input(net: Net) -> str:
    return net.input("mask", ["batch", 1, "seq", "seq"])


def _pad(net: Net) -> str:
    return net.input("mask", ["batch", 1, 1, "seq"], "bool")


HIDES: dict[str, tuple[Callable[[Net, str], str], str, bool]] = {
    "Where(visible, scores, -inf)": (
        lambda n, s: n.op("Where", _bool_input(n), s, HIDDEN), "bool", True,
    ),
    "Where(hidden, -inf, scores)": (
        lambda n, s: n.op("Where", _bool_input(n), HIDDEN, s), "bool", True,
    ),
    "Where(mask == 0, -inf, scores)": (
        lambda n, s: n.op("Where", n.op("Equal", _float_input(n), 0.0), HIDDEN, s), "bool", True,
    ),
    "Where(Not(mask), -inf, scores)": (
        lambda n, s: n.op("Where", n.op("Not", _pad(n)), HIDDEN, s), "bool", True,
    ),
    "Where with -1e4": (
        lambda n, s: n.op("Where", _bool_input(n), s, -1e4), "bool", False,
    ),
    "Add of a float mask": (
        lambda n, s: n.op("Add", s, _float_input(n)), "additive", True,
    ),
    "Add, the mask on the left": (
        lambda n, s: n.op("Add", _float_input(n), s), "additive", True,
    ),
    "Add(Where(mask, 0, -inf))": (
        lambda n, s: n.op("Add", s, n.op("Where", _bool_input(n), 0.0, HIDDEN)), "bool", True,
    ),
    "(1 - m) * finfo.min": (
        lambda n, s: n.op("Add", s, _bert_mask(n)), "additive", False,
    ),
    "two masks, one after the other": (
        lambda n, s: n.op(
            "Where", n.input("pad", ["batch", 1, 1, "seq"], "bool"),
            n.op("Where", _bool_input(n), s, HIDDEN), HIDDEN,
        ), "bool", True,
    ),
    "a bias, and then a mask": (
        lambda n, s: n.op("Where", _bool_input(n), n.op("Add", s, _bias(n)), HIDDEN),
        "bool+additive", True,
    ),
    "a constant bias of each head": (
        lambda n, s: n.op("Add", s, np.arange(HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1)),
        "additive", False,
    ),
}  # fmt: skip


def _bert_mask(net: Net) -> str:
    mask = net.input("mask", ["batch", 1, 1, "seq"], "int64")
    number = net.op("Cast", mask, to=TensorProto.FLOAT)
    return net.op("Mul", net.op("Sub", 1.0, number), float(np.finfo(np.float32).min))


def _bias(net: Net) -> str:
    return net.input("bias", ["batch", 1, "seq", "seq"])


@pytest.mark.parametrize("written", HIDES)
def test_masks_however_they_are_applied(written: str) -> None:
    hide, kind, dead_rows = HIDES[written]
    found = only(self_attention(hide=hide))
    assert (found.recognised, found.reason) == (True, "")
    assert (found.mask, found.causal, found.dead_rows) == (kind, False, dead_rows)
    assert found.scale == pytest.approx(SCALE)


def test_a_mask_that_is_no_value_info_still_is_bool() -> None:
    """A file without annotations for what stands inside of the graph: Greater gives bool."""
    model = self_attention(
        hide=lambda n, s: n.op("Where", n.op("Greater", _float_input(n), 0.0), s, HIDDEN)
    )
    assert not model.graph.value_info
    assert only(model).mask == "bool"


NORMALISES: dict[str, Callable[[Net, str], str]] = {
    "plain": softmax,
    "over axis 3": lambda n, s: n.op("Softmax", s, axis=3),
    "the default axis": lambda n, s: n.op("Softmax", s),
    "in fp32 between casts": lambda n, s: n.op(
        "Cast", softmax(n, n.op("Cast", s, to=TensorProto.FLOAT)), to=TensorProto.FLOAT16
    ),
    "with a NaN guard": lambda n, s: _guarded(n, softmax(n, s)),
    "with a NaN guard in fp32": lambda n, s: n.op(
        "Cast", _guarded(n, softmax(n, n.op("Cast", s, to=TensorProto.FLOAT)), np.float32),
        to=TensorProto.FLOAT16,
    ),
    "with an Identity": lambda n, s: n.op("Identity", softmax(n, s)),
    "with a Dropout": lambda n, s: n.op("Dropout", softmax(n, s)),
}  # fmt: skip


def _guarded(net: Net, weights: str, kind: type[np.floating] | None = None) -> str:
    zero = np.array(0, kind or net.kind)
    return net.op("Where", net.op("IsNaN", weights), zero, weights)


@pytest.mark.parametrize("written", NORMALISES)
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_however_it_is_wrapped(written: str, causal: bool) -> None:
    def hide(net: Net, scores: str) -> str:
        return net.op("Where", causal_visible(net), scores, -math.inf) if causal else scores

    model = self_attention(normalise=NORMALISES[written], hide=hide, dtype="float16")
    found = only(model)
    assert (found.recognised, found.reason, found.causal) == (True, "", causal)


def test_heads_in_three_dimensions() -> None:
    """(B·H,N,Dh) batched products, as torch.bmm writes them."""
    found = only(bmm_attention())
    assert (found.recognised, found.reason) == (True, "")
    assert (found.heads, found.head_size) == (HEADS, SIZE)


def bmm_attention() -> onnx.ModelProto:
    """Sequence-first as torch.nn.MultiheadAttention does it: (N,B·H,Dh) -> (B·H,N,Dh)."""
    net = Net()
    x = net.input("x", ["seq", "batch", WIDTH])
    seq, batch = (net.op("Shape", x, start=axis, end=axis + 1) for axis in (0, 1))
    together = net.op("Concat", seq, net.op("Mul", batch, [HEADS]), [SIZE], axis=0)
    q, k, v = (
        net.op("Transpose", net.op("Reshape", project(net, x), together), perm=[1, 0, 2])
        for _ in range(3)
    )
    scores = net.op("MatMul", net.op("Mul", q, SCALE), net.op("Transpose", k, perm=[0, 2, 1]))
    context = net.op("MatMul", softmax(net, scores), v)
    back = net.op("Concat", seq, batch, [WIDTH], axis=0)
    rows = net.op("Reshape", net.op("Transpose", context, perm=[1, 0, 2]), back)
    return net.model(project(net, rows))


def operator_attention(
    *, three_axes: bool = False, mask: str | None = None, **attributes: float
) -> onnx.ModelProto:
    net = Net(opset=23)
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = (project(net, x) for _ in range(3))
    if not three_axes:
        q, k, v = (split_heads(net, rows) for rows in (q, k, v))
    given = net.input("mask", ["batch", 1, "seq", "seq"], mask) if mask else None
    numbers = {"q_num_heads": HEADS, "kv_num_heads": HEADS} if three_axes else {}
    operands = [q, k, v] if given is None else [q, k, v, given]
    context = net.op("Attention", *operands, **numbers, **attributes)
    return net.model(project(net, context if three_axes else merge_heads(net, context)))


@pytest.mark.parametrize("three_axes", [False, True])
def test_operator(three_axes: bool) -> None:
    found = only(operator_attention(three_axes=three_axes))
    assert (found.source, found.recognised, found.reason) == ("operator", True, "")
    assert (found.heads, found.kv_heads, found.head_size) == (HEADS, HEADS, SIZE)
    assert found.scale == pytest.approx(SCALE)


def test_operator_says_its_scale_and_causality() -> None:
    found = only(operator_attention(scale=0.5, is_causal=1))
    assert (found.scale, found.causal, found.mask) == (0.5, True, "none")


@pytest.mark.parametrize(("mask", "kind"), [("bool", "bool"), ("float32", "additive")])
def test_operator_with_a_mask(mask: str, kind: str) -> None:
    found = only(operator_attention(mask=mask))
    assert (found.mask, found.dead_rows) == (kind, True)


# What is found and left alone, with the reason.


def test_softcap_is_described_with_the_reason() -> None:
    def capped(net: Net, scores: str) -> str:
        return net.op("Mul", net.op("Tanh", net.op("Div", scores, 30.0)), 30.0)

    found = only(self_attention(hide=capped))
    assert not found.recognised
    assert "softcap" in found.reason
    assert (found.heads, found.head_size) == (HEADS, SIZE)


def test_softcap_of_the_operator() -> None:
    found = only(operator_attention(softcap=30.0))
    assert not found.recognised
    assert "softcap" in found.reason


def test_returned_weights_are_described_with_the_reason() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    weights = softmax(net, scaled_product(net, q, k))
    output = project(net, merge_heads(net, net.op("MatMul", weights, v)))
    found = only(net.model(output, weights))
    assert not found.recognised
    assert "weights are used or returned" in found.reason


def test_weights_that_something_else_reads() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    weights = softmax(net, scaled_product(net, q, k))
    mean = net.op("ReduceMean", weights, [1])
    found = only(net.model(merge_heads(net, net.op("MatMul", weights, v)), mean))
    assert not found.recognised
    assert "weights are used or returned" in found.reason


def test_a_scale_after_the_mask_is_named() -> None:
    def late(net: Net, scores: str) -> str:
        return net.op("Mul", net.op("Add", scores, _float_input(net)), 0.5)

    found = only(self_attention(hide=late))
    assert not found.recognised
    assert "after the mask" in found.reason


def test_softmax_over_the_queries_is_named() -> None:
    found = only(self_attention(normalise=lambda n, s: n.op("Softmax", s, axis=2)))
    assert not found.recognised
    assert "axis 2" in found.reason


# Softmaxes that are no attention.


def classifier() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    return net.model(softmax(net, project(net, x, 10)))


def router() -> onnx.ModelProto:
    """A mixture of experts: probabilities of a product with a constant, times what experts gave."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    weights = net.op("Unsqueeze", softmax(net, project(net, x, 4)), [2])
    experts = net.op("Reshape", project(net, x, 4 * WIDTH), [0, 0, 4, WIDTH])
    return net.model(net.op("Squeeze", net.op("MatMul", weights, experts), [2]))


def pooling() -> onnx.ModelProto:
    """Attention pooling: scores from a constant vector, which no kernel of attention computes."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    scores = net.op("Transpose", project(net, x, 1), perm=[0, 2, 1])
    return net.model(net.op("MatMul", softmax(net, scores), x))


def table_of_probabilities() -> onnx.ModelProto:
    """The probabilities are multiplied with a constant: an embedding of classes."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, _ = separate(net, x)
    fixed = net.op("Slice", scaled_product(net, q, k), [0], [1], [3])
    return net.model(net.op("MatMul", softmax(net, fixed), net.weight(1, 5)))


@pytest.mark.parametrize("make", [classifier, router, pooling, table_of_probabilities])
def test_other_softmaxes_are_not_claimed(make: Callable[[], onnx.ModelProto]) -> None:
    assert inspect_net(make()).attentions == ()


def test_several_attentions_are_numbered_in_order() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    for scale in (0.5, 0.25):
        q, k, v = separate(net, x)
        weights = softmax(net, net.op("Mul", products(net, q, k), scale))
        x = project(net, merge_heads(net, net.op("MatMul", weights, v)))
    found = inspect_net(net.model(x)).attentions
    assert [(info.name, info.scale) for info in found] == [("attn0", 0.5), ("attn1", 0.25)]


def test_square_tril_buffer_is_causal() -> None:
    def hide(net: Net, scores: str) -> str:
        buffer = np.tril(np.ones((1, 1, 64, 64), bool))
        rows = net.op("Slice", buffer, [0, 0], square(net), [2, 3])
        return net.op("Where", rows, scores, HIDDEN)

    found = only(self_attention(hide=hide))
    assert (found.causal, found.mask, found.dead_rows) == (True, "none", False)
