"""Masks with fewer nodes: the same numbers, and graphs that only look like masks."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import WIDTH, Net, causal_visible, passed, self_attention, to_ir

from attnport.export.lighter_masks import (
    BOOL_MAXIMUM_OPSET,
    lose_negations,
    reduce_bools,
    widen_ranges,
)


def causal(net: Net, scores: str) -> str:
    return net.op("Add", scores, net.op("Where", causal_visible(net), 0.0, -float("inf")))


def by_input(net: Net, scores: str) -> str:
    mask = net.input("mask", ["batch", 1, "seq", "seq"], "bool")
    return net.op("Where", mask, scores, -float("inf"))


def lightened(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int, int]:
    found = to_ir(onnx.shape_inference.infer_shapes(model, data_prop=True))
    widened = widen_ranges(found.graph).changed
    reduced = reduce_bools(found.graph).changed
    if reduced:
        found.opset_imports[""] = BOOL_MAXIMUM_OPSET
        lose_negations(found.graph)
    lowered = ir.serde.serialize_model(found)
    onnx.checker.check_model(lowered, full_check=True)
    return lowered, widened, reduced


def test_causality_is_counted_in_int64() -> None:
    model, _ = passed(self_attention(hide=causal))
    lowered, widened, reduced = lightened(model)
    assert (widened, reduced) == (1, 0)
    assert_same_numbers(model, lowered, [{"x": normal((2, n, WIDTH))} for n in (1, 6)])
    assert lightened(lowered)[1] == 0


def test_a_mask_is_asked_itself_whether_it_shows_anything() -> None:
    model, _ = passed(self_attention(hide=by_input))
    lowered, _, reduced = lightened(model)
    assert reduced == 1
    feeds = {"x": normal((2, 5, WIDTH)), "mask": normal((2, 1, 5, 5)) > 0}
    feeds["mask"][0, 0, 2] = False  # a dead row
    assert_same_numbers(model, lowered, feeds)
    assert lightened(lowered)[2] == 0


def test_what_is_hidden_needs_no_negation() -> None:
    def hide(net: Net, scores: str) -> str:
        mask = net.input("mask", ["batch", 1, "seq", "seq"])
        return net.op("Where", net.op("Equal", mask, 0.0), -float("inf"), scores)

    model, _ = passed(self_attention(hide=hide))
    assert "Not" in {node.op_type for node in model.graph.node}
    lowered, _, reduced = lightened(model)
    assert reduced == 1
    assert "Not" not in {node.op_type for node in lowered.graph.node}
    feeds = {"x": normal((2, 5, WIDTH)), "mask": (normal((2, 1, 5, 5)) > 0).astype("float32")}
    feeds["mask"][0, 0, 2] = 0  # a dead row
    assert_same_numbers(model, lowered, feeds)


@pytest.mark.parametrize(
    "body",
    [
        "f = Cast <to = 1> (mask)\nm = ReduceMax (f, last)\ny = Greater (m, one)\n",
        "f = Cast <to = 1> (number)\nm = ReduceMax (f, last)\ny = Greater (m, zero)\n",
    ],
)
def test_other_maxima_stay(body: str) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        "net (bool[n,8] mask, int64[n,8] number) => (bool[n,1] y) "
        f"<int64[1] last = {{-1}}, float one = {{1.0}}, float zero = {{0.0}}> {{{body}}}"
    )
    assert lightened(model)[1:] == (0, 0)


def test_a_range_that_is_read_elsewhere_stays_narrow() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        "net (int64 n) => (bool[a,b] y, int32[c] z) "
        "<int32 zero = {0}, int32 one = {1}, int64[1] last = {1}> {"
        "m = Cast <to = 6> (n)\nr = Range (zero, m, one)\nc = Range (zero, m, one)\n"
        "u = Unsqueeze (r, last)\ny = GreaterOrEqual (u, c)\nz = Add (r, one)\n}"
    )
    assert lightened(model)[1] == 0
