"""Ways of writing scores, scale and softmax, and whole attentions in other shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto
from tests.export.nets import (
    HEADS,
    SIZE,
    WIDTH,
    Net,
    merge_heads,
    project,
    scaled_product,
    softmax,
    split_heads,
    turn,
)

SCALE = 1 / math.sqrt(SIZE)


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
    "less the largest of its row": lambda n, s: softmax(n, _less_largest(n, s)),
    "with an Identity": lambda n, s: n.op("Identity", softmax(n, s)),
    "with a Dropout": lambda n, s: n.op("Dropout", softmax(n, s)),
}  # fmt: skip


def _guarded(net: Net, weights: str, kind: type[np.floating] | None = None) -> str:
    zero = np.array(0, kind or net.kind)
    return net.op("Where", net.op("IsNaN", weights), zero, weights)


def _less_largest(net: Net, scores: str) -> str:
    return net.op("Sub", scores, net.op("ReduceMax", scores, [-1], keepdims=1))


def with_sink(net: Net, scores: str, column: str | None = None) -> str:
    """One more score for each row, as gpt-oss has it; its probability is dropped."""
    if column is None:
        sinks = np.array([0.5, -1.0], np.float32).reshape(1, HEADS, 1, 1)
        rows = net.op("Shape", scores, start=2, end=3)
        batch = net.op("Shape", scores, start=0, end=1)
        sizes = net.op("Concat", batch, [HEADS], rows, [1], axis=0)
        column = net.op("Expand", sinks, sizes)
    together = net.op("Concat", scores, column, axis=-1)
    weights = softmax(net, _less_largest(net, together))
    return net.op("Slice", weights, [0], [-1], [3], [1])


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
    *,
    three_axes: bool = False,
    mask: str | None = None,
    dtype: str = "float32",
    **attributes: float,
) -> onnx.ModelProto:
    net = Net(opset=23, dtype=dtype)
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = (project(net, x) for _ in range(3))
    if not three_axes:
        q, k, v = (split_heads(net, rows) for rows in (q, k, v))
    given = net.input("mask", ["batch", 1, "seq", "seq"], mask) if mask else None
    numbers = {"q_num_heads": HEADS, "kv_num_heads": HEADS} if three_axes else {}
    operands = [q, k, v] if given is None else [q, k, v, given]
    context = net.op("Attention", *operands, **numbers, **attributes)
    return net.model(project(net, context if three_axes else merge_heads(net, context)))
