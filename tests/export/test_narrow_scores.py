"""Products of queries and keys that the source widens to float32, in half precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import (
    AXES,
    SIZE,
    WIDTH,
    Net,
    inspect_net,
    merge_heads,
    passed,
    project,
    separate,
    softmax,
    to_ir,
    turn,
)

from attnport.export.narrow_scores import narrow_scores
from attnport.export.passes import look_at

Widen = Callable[[Net, str], str]


def wide(net: Net, value: str) -> str:
    return net.op("Cast", value, to=TensorProto.FLOAT)


def as_it_is(net: Net, value: str) -> str:
    return value


def model_of(widen_query: Widen, widen_key: Widen, *, scaled: bool = False) -> onnx.ModelProto:
    """GPT-Neo: scores and softmax in float32, without a scale or with it on the wide queries."""
    net = Net(dtype="float16")
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    q = widen_query(net, q)
    if scaled:
        q = net.op("Mul", q, np.array(1 / SIZE, np.float32))
    scores = net.op("MatMul", q, turn(net, widen_key(net, k)))
    weights = net.op("Cast", softmax(net, scores), to=TensorProto.FLOAT16)
    return net.model(project(net, merge_heads(net, net.op("MatMul", weights, v))))


def scores_of(model: onnx.ModelProto) -> str:
    (found,) = inspect_net(model).attentions
    return found.nodes[0]


def narrowed(model: onnx.ModelProto, name: str = "") -> tuple[onnx.ModelProto, int]:
    names = (name or scores_of(model),)
    lowered = to_ir(model)
    record = narrow_scores(lowered.graph, names, look_at(lowered.graph, AXES).graphs[0])
    proto = ir.serde.serialize_model(lowered)
    onnx.checker.check_model(proto, full_check=True)
    return proto, record.changed


@pytest.mark.parametrize("scaled", [False, True])
def test_scores_that_were_widened_are_narrow(scaled: bool) -> None:
    canonical, _ = passed(model_of(wide, wide, scaled=scaled))
    lowered, changed = narrowed(canonical)
    assert changed == 1
    (node,) = [node for node in lowered.graph.node if node.name == scores_of(canonical)]
    (after,) = [n for n in lowered.graph.node if node.output[0] in n.input]
    assert after.op_type == "Cast"
    assert_same_numbers(canonical, lowered, {"x": normal((2, 5, WIDTH), "float16")})


def test_what_was_narrowed_stays_as_it_is() -> None:
    canonical, _ = passed(model_of(wide, wide))
    lowered, _ = narrowed(canonical)
    assert narrowed(lowered)[1] == 0


def test_other_products_stay_wide() -> None:
    canonical, _ = passed(model_of(wide, wide))
    assert narrowed(canonical, "/attn0/other")[1] == 0


def rotated(net: Net, value: str) -> str:
    """Something is computed in float32, and not only multiplied."""
    return net.op("Cos", wide(net, value))


@pytest.mark.parametrize(("query", "key"), [(wide, rotated), (rotated, wide), (rotated, rotated)])
def test_what_is_computed_in_float32_stays_so(query: Widen, key: Widen) -> None:
    canonical, _ = passed(model_of(query, key))
    assert narrowed(canonical)[1] == 0
