"""Ways of putting the heads into the batch axis for a part of the way, (B·H,N,T)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from tests.export.nets import HEADS, SIZE, WIDTH, Net, merge_heads, project, softmax, split_heads
from tests.export.ways_scores import SCALE


def joined(net: Net, four: str) -> str:
    """(B,H,N,C) -> (B·H,N,C)."""
    last = net.op("Shape", four, start=2, end=4)
    return net.op("Reshape", four, net.op("Concat", [-1], last, axis=0))


def parted(net: Net, three: str) -> str:
    """(B·H,N,C) -> (B,H,N,C)."""
    last = net.op("Shape", three, start=1, end=3)
    return net.op("Reshape", three, net.op("Concat", [-1, HEADS], last, axis=0))


def _three(net: Net, x: str) -> tuple[str, str, str]:
    q, k, v = (joined(net, split_heads(net, project(net, x, bias=True))) for _ in range(3))
    return q, net.op("Transpose", k, perm=[0, 2, 1]), v


def _mask(net: Net) -> str:
    return net.input("mask", ["batch", 1, 1, "seq"], "bool")


def alibi(net: Net, x: str) -> tuple[str, ...]:
    """BLOOM: a bias of each head in three axes, the mask in four, the products in three."""
    q, k, v = _three(net, x)
    places = net.op("Cast", net.op("Range", 0, _length(net, x), 1), to=1)
    slopes = np.array([0.25, 0.0625], np.float32).reshape(HEADS, 1, 1)
    batch = net.op("Shape", x, start=0, end=1)
    bias = net.op("Tile", net.op("Mul", places, slopes), net.op("Concat", batch, [1, 1], axis=0))
    scores = net.op("Add", net.op("Mul", net.op("MatMul", q, k), SCALE), bias)
    hidden = net.op("Where", _mask(net), parted(net, scores), float("-inf"))
    weights = joined(net, softmax(net, hidden))
    return (parted(net, net.op("MatMul", weights, v)),)


def masked_in_four(net: Net, x: str) -> tuple[str, ...]:
    """BART, OPT: to four axes for the mask alone, and back before the softmax."""
    q, k, v = _three(net, x)
    scores = parted(net, net.op("MatMul", net.op("Mul", q, SCALE), k))
    hidden = joined(net, net.op("Where", _mask(net), scores, float("-inf")))
    return (parted(net, net.op("MatMul", softmax(net, hidden), v)),)


def weights_in_four(net: Net, x: str) -> tuple[str, ...]:
    """There and back between softmax and product, for weights that nothing asks for."""
    q, k, v = _three(net, x)
    weights = parted(net, softmax(net, net.op("MatMul", net.op("Mul", q, SCALE), k)))
    return (parted(net, net.op("MatMul", joined(net, weights), v)),)


def weights_returned(net: Net, x: str) -> tuple[str, ...]:
    """The same, and the weights are an output."""
    q, k, v = _three(net, x)
    weights = parted(net, softmax(net, net.op("MatMul", net.op("Mul", q, SCALE), k)))
    return (parted(net, net.op("MatMul", joined(net, weights), v)), weights)


def product_in_four(net: Net, x: str) -> tuple[str, ...]:
    """Only the scores are in three axes; values and probabilities never are."""
    q, k, _ = _three(net, x)
    v = split_heads(net, project(net, x, bias=True))
    scores = parted(net, net.op("Mul", net.op("MatMul", q, k), SCALE))
    return (net.op("MatMul", softmax(net, scores), v),)


def positions_too(net: Net, x: str) -> tuple[str, ...]:
    """DeBERTa: queries and keys are also multiplied with positions, and that is looked up."""
    q, k, v = _three(net, x)
    table = net.weight(SIZE, 4)
    row = net.op("Range", 0, _length(net, x), 1)
    distance = net.op("Clip", net.op("Sub", net.op("Unsqueeze", row, [1]), row), 0, 3)
    product = net.op("MatMul", q, table)
    size = net.op("Shape", product, start=0, end=2)
    length = net.op("Shape", x, start=1, end=2)
    places = net.op("Expand", distance, net.op("Concat", size, length, axis=0))
    bias = net.op("GatherElements", product, places, axis=2)
    scores = net.op("Add", net.op("MatMul", q, net.op("Mul", k, SCALE)), bias)
    hidden = net.op("Where", net.op("Not", _mask(net)), -1e4, parted(net, scores))
    weights = joined(net, softmax(net, hidden))
    return (parted(net, net.op("MatMul", weights, v)),)


def _length(net: Net, x: str) -> str:
    return net.op("Squeeze", net.op("Shape", x, start=1, end=2), [0])


WAYS: dict[str, Callable[[Net, str], tuple[str, ...]]] = {
    "BLOOM's": alibi,
    "masked in four axes": masked_in_four,
    "weights in four axes": weights_in_four,
    "only scores in three axes": product_in_four,
    "DeBERTa's": positions_too,
}


def model_of(way: Callable[[Net, str], tuple[str, ...]], *, opset: int = 18) -> onnx.ModelProto:
    net = Net(opset=opset)
    x = net.input("x", ["batch", "seq", WIDTH])
    context, *others = way(net, x)
    return net.model(project(net, merge_heads(net, context), bias=True), *others)
