"""Ways of hiding scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, numpy_helper
from tests.export.nets import (
    HEADS,
    Net,
    causal_visible,
    positions,
    square,
)

HIDDEN = -math.inf
LOWEST = float(np.finfo(np.float32).min)
Hide = Callable[[Net, str], str]


def bool_input(net: Net) -> str:
    return net.input("mask", ["batch", 1, "seq", "seq"], "bool")


def float_input(net: Net) -> str:
    return net.input("mask", ["batch", 1, "seq", "seq"])


def _key_padding(net: Net) -> str:
    return net.input("mask", ["batch", 1, 1, "seq"], "bool")


HIDES: dict[str, tuple[Callable[[Net, str], str], str, bool]] = {
    "Where(visible, scores, -inf)": (
        lambda n, s: n.op("Where", bool_input(n), s, HIDDEN), "bool", True,
    ),
    "Where(hidden, -inf, scores)": (
        lambda n, s: n.op("Where", bool_input(n), HIDDEN, s), "bool", True,
    ),
    "Where(mask == 0, -inf, scores)": (
        lambda n, s: n.op("Where", n.op("Equal", float_input(n), 0.0), HIDDEN, s), "bool", True,
    ),
    "Where(Not(mask), -inf, scores)": (
        lambda n, s: n.op("Where", n.op("Not", _key_padding(n)), HIDDEN, s), "bool", True,
    ),
    "Where with -1e4": (
        lambda n, s: n.op("Where", bool_input(n), s, -1e4), "bool", False,
    ),
    "Add of a float mask": (
        lambda n, s: n.op("Add", s, float_input(n)), "additive", True,
    ),
    "Add, the mask on the left": (
        lambda n, s: n.op("Add", float_input(n), s), "additive", True,
    ),
    "Add(Where(mask, 0, -inf))": (
        lambda n, s: n.op("Add", s, n.op("Where", bool_input(n), 0.0, HIDDEN)), "bool", True,
    ),
    "(1 - m) * finfo.min": (
        lambda n, s: n.op("Add", s, _bert_mask(n)), "bool", False,
    ),
    "a constant bias, and then (1 - m) * finfo.min": (
        lambda n, s: n.op("Add", n.op("Add", s, _head_bias()), _bert_mask(n)),
        "bool+additive", False,
    ),
    "two masks, one after the other": (
        lambda n, s: n.op(
            "Where", n.input("pad", ["batch", 1, 1, "seq"], "bool"),
            n.op("Where", bool_input(n), s, HIDDEN), HIDDEN,
        ), "bool", True,
    ),
    "a bias, and then a mask": (
        lambda n, s: n.op("Where", bool_input(n), n.op("Add", s, _bias(n)), HIDDEN),
        "bool+additive", True,
    ),
    "a constant bias of each head": (
        lambda n, s: n.op("Add", s, _head_bias()), "additive", False,
    ),
}  # fmt: skip


def _head_bias() -> np.ndarray:
    return np.arange(HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1)


def _bert_mask(net: Net) -> str:
    mask = net.input("mask", ["batch", 1, 1, "seq"], "int64")
    number = net.op("Cast", mask, to=TensorProto.FLOAT)
    return net.op("Mul", net.op("Sub", 1.0, number), float(np.finfo(np.float32).min))


def _bias(net: Net) -> str:
    return net.input("bias", ["batch", 1, "seq", "seq"])


def ones(net: Net, kind: type[np.generic] = np.float32) -> str:
    """(N,N) of ones."""
    one = numpy_helper.from_array(np.ones(1, kind), "one")
    return net.op("ConstantOfShape", square(net), value=one)


def buffer(net: Net, kind: type[np.generic], size: int = 64, below: int | None = None) -> str:
    """The first N rows and columns of a constant triangle (1,1,size,size)."""
    triangle = np.tril(np.ones((1, 1, size, size)))
    if below is not None:
        triangle = np.triu(triangle, 1 - below)
    return net.op("Slice", triangle.astype(kind), [0, 0], square(net), [2, 3])


def triangle(net: Net, upper: int, offset: int) -> str:
    """Trilu of a square of ones, as bool."""
    shape = net.op("Trilu", ones(net), offset, upper=upper)
    return net.op("Cast", shape, to=TensorProto.BOOL)


CAUSAL: dict[str, Hide] = {
    "Trilu, the upper part filled": lambda n, s: n.op("Where", triangle(n, 1, 1), HIDDEN, s),
    "Trilu, the lower part kept": lambda n, s: n.op("Where", triangle(n, 0, 0), s, HIDDEN),
    "Trilu of -inf, added": lambda n, s: n.op("Add", s, _triu_of_infinity(n)),
    "positions compared": lambda n, s: n.op("Where", causal_visible(n), s, HIDDEN),
    "positions compared, inverted": lambda n, s: n.op(
        "Where", n.op("Less", *positions(n)), HIDDEN, s
    ),
    "positions compared, added": lambda n, s: n.op(
        "Add", s, n.op("Where", causal_visible(n), 0.0, HIDDEN)
    ),
    "Not of what is hidden": lambda n, s: n.op(
        "Where", n.op("Not", n.op("Less", *positions(n))), s, HIDDEN
    ),
    "a bool buffer": lambda n, s: n.op("Where", buffer(n, np.bool_), s, HIDDEN),
    "a float buffer == 0": lambda n, s: n.op(
        "Where", n.op("Equal", buffer(n, np.float32), 0.0), HIDDEN, s
    ),
    "finfo.min, filled": lambda n, s: n.op("Where", causal_visible(n), s, LOWEST),
    "finfo.min, added": lambda n, s: n.op(
        "Add", s, n.op("Where", causal_visible(n), 0.0, LOWEST)
    ),
    "twice": lambda n, s: n.op(
        "Where", buffer(n, np.bool_), n.op("Where", causal_visible(n), s, HIDDEN), HIDDEN
    ),
    "with a mask that hides nothing": lambda n, s: n.op(
        "Where", causal_visible(n), n.op("Where", all_true(n), s, HIDDEN), HIDDEN
    ),
}  # fmt: skip


def _triu_of_infinity(net: Net) -> str:
    """triu(full(-inf), 1), as `torch.triu(torch.full((n, n), -inf), 1)`."""
    full = net.op("Expand", np.full((1, 1), -np.inf, net.kind), square(net))
    return net.op("Trilu", full, 1, upper=1)


def all_true(net: Net) -> str:
    return net.op("Cast", ones(net), to=TensorProto.BOOL)


def window(net: Net, size: int) -> str:
    """Key j is seen by query i where 0 <= i - j < size."""
    distance = net.op("Sub", *positions(net))
    return net.op("And", net.op("GreaterOrEqual", distance, 0), net.op("Less", distance, size))


def near(net: Net, size: int) -> str:
    distance = net.op("Abs", net.op("Sub", *positions(net)))
    return net.op("Less", distance, size)


ALMOST_CAUSAL: dict[str, Callable[[Net], str]] = {
    "a window of 2": lambda n: window(n, 2),
    "a window of 6": lambda n: window(n, 6),
    "a window of 15, one less than the longest sequence": lambda n: window(n, 15),
    "a band around the diagonal": lambda n: near(n, 9),
    "one off": lambda n: n.op("Greater", *positions(n)),
    "one off the other way": lambda n: triangle(n, 0, 1),
    "a buffer with a window": lambda n: buffer(n, np.bool_, below=7),
    "a long buffer with a window": lambda n: buffer(n, np.bool_, 1024, below=12),
    "the wrong triangle": lambda n: triangle(n, 1, 0),
}


def pad(net: Net, dtype: str = "bool") -> str:
    return net.input("pad", ["batch", 1, 1, "seq"], dtype)


PADDING: dict[str, tuple[Hide, tuple[str, bool, bool]]] = {
    "-inf": (lambda n, s: n.op("Where", pad(n), s, HIDDEN), ("bool", False, True)),
    "-1e4": (lambda n, s: n.op("Where", pad(n), s, -1e4), ("bool", False, False)),
    "finfo.min": (lambda n, s: n.op("Where", pad(n), s, LOWEST), ("bool", False, False)),
    "causal and -inf": (
        lambda n, s: n.op("Where", n.op("And", pad(n), causal_visible(n)), s, HIDDEN),
        ("bool", True, True),
    ),
    "causal, then -inf": (
        lambda n, s: n.op("Where", pad(n), n.op("Where", causal_visible(n), s, HIDDEN), HIDDEN),
        ("bool", True, True),
    ),
    "causal, then -1e4": (
        lambda n, s: n.op("Where", pad(n), n.op("Where", causal_visible(n), s, HIDDEN), -1e4),
        ("bool", False, False),
    ),
    "(1 - m) * -1e4, added": (
        lambda n, s: n.op("Add", s, _inverted(n, -1e4)), ("additive", False, False),
    ),
    "(1 - m) * finfo.min, added": (
        lambda n, s: n.op("Add", s, _inverted(n, LOWEST)), ("bool", False, False),
    ),
    "given as it is added": (
        lambda n, s: n.op("Add", s, pad(n, "float32")), ("additive", False, True),
    ),
}  # fmt: skip


def _inverted(net: Net, lowest: float) -> str:
    number = net.op("Cast", pad(net, "int64"), to=TensorProto.FLOAT)
    return net.op("Mul", net.op("Sub", 1.0, number), lowest)


def _low(net: Net, scores: str) -> str:
    return net.op("Where", causal_visible(net), scores, LOWEST)


# Two masks of which one, at least, hides by a number.
NUMBERS: dict[str, Hide] = {
    "causal finfo.min, then (1 - m) * finfo.min added": lambda n, s: n.op(
        "Add", _low(n, s), _inverted(n, LOWEST)
    ),
    "(1 - m) * finfo.min added, then causal finfo.min": lambda n, s: _low(
        n, n.op("Add", s, _inverted(n, LOWEST))
    ),
    "causal finfo.min, then (1 - m) * -1e4 added": lambda n, s: n.op(
        "Add", _low(n, s), _inverted(n, -1e4)
    ),
    "causal finfo.min, then finfo.min": lambda n, s: n.op("Where", pad(n), _low(n, s), LOWEST),
    "causal finfo.min, then -1e4": lambda n, s: n.op("Where", pad(n), _low(n, s), -1e4),
    "causal finfo.min, then -inf": lambda n, s: n.op("Where", pad(n), _low(n, s), HIDDEN),
    "causal -inf, then -1e4": lambda n, s: n.op(
        "Where", pad(n), n.op("Where", causal_visible(n), s, HIDDEN), -1e4
    ),
    "causal -inf, then (1 - m) * finfo.min added": lambda n, s: n.op(
        "Add", n.op("Where", causal_visible(n), s, HIDDEN), _inverted(n, LOWEST)
    ),
    "-1e4, then a bias": lambda n, s: n.op(
        "Add", n.op("Where", pad(n), s, -1e4), n.input("bias", ["batch", 1, "seq", "seq"])
    ),
}


def _added(net: Net, scores: str, visible: str, number: float) -> str:
    return net.op("Add", scores, net.op("Where", visible, 0.0, number))


# What is added to hide scores that are hidden already, and what the attention then has: its mask
# and whether it is causal.
COVERED: dict[str, tuple[Hide, tuple[str, bool]]] = {
    "causal, added again": (
        lambda n, s: _added(n, _low(n, s), causal_visible(n), -65504.0), ("none", True),
    ),
    "added first": (
        lambda n, s: _low(n, _added(n, s, causal_visible(n), -65504.0)), ("none", True),
    ),
    "a buffer, and positions added": (
        lambda n, s: _added(
            n, n.op("Where", buffer(n, np.bool_), s, LOWEST), causal_visible(n), -65504.0
        ), ("none", True),
    ),
    "a window, and causality added": (
        lambda n, s: _added(
            n, n.op("Where", window(n, 6), s, LOWEST), causal_visible(n), -65504.0
        ), ("bool", False),
    ),
    "-inf, and a number added": (
        lambda n, s: _added(
            n, n.op("Where", causal_visible(n), s, HIDDEN), causal_visible(n), -1e4
        ), ("none", True),
    ),
}  # fmt: skip

# What is added beside a mask that does not hide the same, or not for good.
UNCOVERED: dict[str, Hide] = {
    "a window added to causality": lambda n, s: _added(n, _low(n, s), window(n, 6), -65504.0),
    "a window of the longest sequence but one": lambda n, s: _added(
        n, _low(n, s), window(n, 15), -65504.0
    ),
    "a number that the other moves": lambda n, s: _added(
        n, n.op("Where", causal_visible(n), s, -1e4), causal_visible(n), -1e4
    ),
    "an input": lambda n, s: n.op("Add", _low(n, s), float_input(n)),
}


def _key_mask(net: Net, hidden: float = HIDDEN) -> str:
    """(B,N) of zeros and of what hides, of a mask (B,N) that says what is seen."""
    visible = net.input("pad", ["batch", "seq"], "bool")
    zeros = net.op("Expand", 0.0, net.op("Shape", visible))
    return net.op("Where", visible, zeros, hidden)


def _sizes(net: Net, *parts: str | int) -> str:
    return net.op("Concat", *([p] if isinstance(p, int) else p for p in parts), axis=0)


def _axis(net: Net, number: int) -> str:
    return net.op("Shape", "x", start=number, end=number + 1)


def _for_all_heads(net: Net, mask: str) -> str:
    """(B,N) -> (B,1,1,N) -> (B,H,1,N) -> (B·H,1,N) -> (B,H,1,N), as torch.nn does it."""
    batch, seq = _axis(net, 0), _axis(net, 1)
    four = net.op("Reshape", mask, _sizes(net, batch, 1, 1, seq))
    wide = net.op("Expand", four, [1, HEADS, 1, 1])
    three = net.op("Reshape", wide, _sizes(net, -1, 1, seq))
    return net.op("Reshape", three, _sizes(net, batch, HEADS, 1, seq))


# Masks that hide, wrapped in movement and casts; and whether they are causal.
WRAPPED: dict[str, tuple[Hide, bool]] = {
    "torch.nn's key_padding_mask": (
        lambda n, s: n.op("Add", s, _for_all_heads(n, _key_mask(n))), False,
    ),
    "unsqueezed, and cast there and back": (
        lambda n, s: n.op("Add", s, n.op("Unsqueeze", n.op(
            "Cast", n.op("Cast", _key_mask(n), to=TensorProto.DOUBLE), to=TensorProto.FLOAT,
        ), [1, 2])), False,
    ),
    "turned": (
        lambda n, s: n.op("Add", s, n.op("Unsqueeze", n.op("Transpose", n.op(
            "Transpose", _key_mask(n), perm=[1, 0]), perm=[1, 0]), [1, 2])), False,
    ),
    "with causality added to it": (
        lambda n, s: n.op("Add", s, n.op(
            "Add", n.op("Where", causal_visible(n), 0.0, HIDDEN), _for_all_heads(n, _key_mask(n))
        )), True,
    ),
    "joined for all heads and rows, then parted": (
        lambda n, s: n.op("Add", s, n.op("Reshape", n.op("Add", n.op(
            "Reshape", n.op("Where", causal_visible(n), 0.0, HIDDEN), _sizes(
                n, 1, 1, _axis(n, 1), _axis(n, 1))), _for_all_heads(n, _key_mask(n)),
        ), _sizes(n, -1, HEADS, _axis(n, 1), _axis(n, 1)))), True,
    ),
    "a condition for all heads": (
        lambda n, s: n.op("Where", _for_all_heads(
            n, n.input("pad", ["batch", "seq"], "bool")), s, HIDDEN), False,
    ),
}  # fmt: skip
