"""Weights that are returned: 0 on dead rows, as the context is; other NaN stays."""

from __future__ import annotations

import numpy as np
import onnx
from tests.export.evaluation import assert_same_numbers, normal, run_in_ort
from tests.export.nets import (
    WIDTH,
    Done,
    Net,
    merge_heads,
    passed,
    project,
    scaled_product,
    separate,
    softmax,
)


def returning() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    mask = net.input("mask", ["batch", 1, "seq", "seq"], "bool")
    q, k, v = separate(net, x)
    weights = softmax(net, net.op("Where", mask, scaled_product(net, q, k), -float("inf")))
    output = project(net, merge_heads(net, net.op("MatMul", weights, v)))
    return net.model(output, net.op("ReduceMean", weights, [1], keepdims=0))


def feeds() -> dict[str, np.ndarray]:
    mask = normal((2, 1, 5, 5)) > 0
    mask[..., 0] = True
    mask[1, 0, 3] = False  # a dead row
    return {"x": normal((2, 5, WIDTH)), "mask": mask}


def guards(done: Done) -> int:
    return sum(record.changed for record in done.records if record.name == "guard_returned")


def test_dead_rows_give_zero() -> None:
    model = returning()
    guarded, done = passed(model)
    assert guards(done) == 1
    assert_same_numbers(model, guarded, feeds())
    weights = run_in_ort(guarded, feeds())[1]
    assert not weights[1, 3].any()
    assert guards(passed(guarded)[1]) == 0


def test_what_overflows_stays_visible() -> None:
    guarded, _ = passed(returning())
    wild = feeds()
    wild["x"][0, 2] = np.inf  # its scores are NaN, where they are not hidden
    assert np.isnan(run_in_ort(guarded, wild)[0][0, 2]).all()
