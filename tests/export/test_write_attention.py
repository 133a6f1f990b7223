"""What is written: the canonical pattern or the operator, once; names; what is left as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx
import pytest
from onnx import helper, numpy_helper
from tests.export.nets import (
    HEADS,
    WIDTH,
    Heads,
    Net,
    causal_visible,
    inspect_net,
    merge_heads,
    op_types,
    passed,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
)
from tests.export.ways_heads import MADE, REPEATS, interleaved, repeated
from tests.export.ways_masks import CAUSAL, HIDDEN, HIDES, PADDING, bool_input
from tests.export.ways_scores import NORMALISES, SCORES, bmm_attention, operator_attention

from attnport.export.records import Form

PLAIN = [
    "MatMul", "Split", "Reshape", "Transpose", "Mul", "Reshape", "Transpose", "MatMul",
    "Softmax", "Reshape", "Transpose", "MatMul", "Transpose", "Reshape", "MatMul",
]  # fmt: skip


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto
    (found,) = [node for node in model.graph.node if node.name == name]
    return found


def constant(model: onnx.ModelProto, name: str) -> float:
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    return float(numpy_helper.to_array(tensor))


@pytest.mark.parametrize("written", SCORES)
def test_every_score_ends_as_the_same_nodes(written: str) -> None:
    after, _ = passed(self_attention(score=SCORES[written]))
    assert sorted(op_types(after)) in (sorted(PLAIN), sorted([*PLAIN[:4], "Div", *PLAIN[5:]]))


@pytest.mark.parametrize("made", [*MADE, "interleaved"])
def test_every_way_to_heads_ends_in_one_product_and_one_canonical_split(made: str) -> None:
    after, _ = passed(self_attention(make_heads=MADE.get(made, interleaved)))
    types = op_types(after)
    assert types.count("MatMul") == 4
    assert types.count("Split") == 1
    assert not {"Slice", "Gather", "Squeeze", "Unsqueeze", "Gemm", "Concat"} & set(types)


def test_names_say_what_nodes_are() -> None:
    after, _ = passed(self_attention(hide=CAUSAL["positions compared"]))
    names = {node.name: node.op_type for node in after.graph.node}
    assert names["/attn0/qkv"] == "MatMul"
    assert names["/attn0/scores"] == "MatMul"
    assert names["/attn0/softmax"] == "Softmax"
    assert names["/attn0/context"] == "MatMul"
    assert len(names) == len(after.graph.node)
    (found,) = inspect_net(after).attentions
    assert found.nodes == ("/attn0/scores", "/attn0/masked", "/attn0/softmax", "/attn0/context")


def test_the_scale_stands_on_the_query() -> None:
    after, _ = passed(self_attention())
    scaled = node(after, "/attn0/query_scaled")
    assert scaled.op_type == "Mul"
    assert constant(after, scaled.input[1]) == 0.25
    assert node(after, "/attn0/scores").input[0] == scaled.output[0]


def test_the_key_goes_to_its_columns_in_one_transposition() -> None:
    after, _ = passed(self_attention())
    producer = {output: node for node in after.graph.node for output in node.output}
    key = producer[node(after, "/attn0/scores").input[1]]
    assert key.op_type == "Transpose"
    assert helper.get_node_attr_value(key, "perm") == [0, 2, 3, 1]
    assert producer[key.input[0]].op_type == "Reshape"


@pytest.mark.parametrize("written", CAUSAL)
def test_pure_causality_is_an_added_bias_of_positions(written: str) -> None:
    after, _ = passed(self_attention(hide=CAUSAL[written]))
    masked = node(after, "/attn0/masked")
    assert masked.op_type == "Add"
    assert op_types(after).count("Where") == 1
    bias = node(after, "/attn0/causal_bias")
    assert constant(after, bias.input[1]) == 0.0
    assert constant(after, bias.input[2]) == -math.inf
    assert node(after, "/attn0/causal").op_type == "GreaterOrEqual"
    assert "Trilu" not in op_types(after)
    # No buffer is left behind.
    assert all(math.prod(t.dims) <= 3 * WIDTH * WIDTH for t in after.graph.initializer)


DOUBLE = [
    (inner, outer) for inner in (-math.inf, -1e4) for outer in (-math.inf, -1e4) if inner != outer
]


@pytest.mark.parametrize(("inner", "outer"), [(-math.inf, -math.inf), *DOUBLE])
@pytest.mark.parametrize("between", [False, True])
def test_no_where_directly_on_another(inner: float, outer: float, between: bool) -> None:
    """Two in a row end the builder of TensorRT for RTX 1.7 with a segmentation fault."""

    def hide(net: Net, scores: str) -> str:
        pad = net.input("pad", ["batch", 1, 1, "seq"], "bool")
        first = net.op("Where", bool_input(net), scores, inner)
        if between:
            first = net.op("Add", first, net.input("bias", ["batch", 1, "seq", "seq"]))
        return net.op("Where", pad, first, outer)

    after, _ = passed(self_attention(hide=hide))
    wheres = {out: n for n in after.graph.node if n.op_type == "Where" for out in n.output}
    assert not [n.name for n in wheres.values() if n.input[1] in wheres]


def test_a_dead_row_is_guarded_after_the_output_product_and_before_its_bias() -> None:
    hide = PADDING["-inf"][0]
    after, _ = passed(self_attention(hide=hide, output_bias=True))
    guard = node(after, "/attn0/output_alive")
    producer = {output: node for node in after.graph.node for output in node.output}
    users = [n.op_type for n in after.graph.node if guard.output[0] in n.input]
    assert producer[guard.input[1]].op_type == "MatMul"
    assert users == ["Add"]
    assert "IsNaN" not in op_types(after)


def test_a_mask_of_each_head_is_guarded_on_the_context() -> None:
    def hide(net: Net, scores: str) -> str:
        mask = net.input("mask", ["batch", HEADS, "seq", "seq"], "bool")
        return net.op("Where", mask, scores, HIDDEN)

    after, _ = passed(self_attention(hide=hide))
    guard = node(after, "/attn0/context_alive")
    assert guard.input[1] == node(after, "/attn0/context").output[0]
    assert not [n for n in after.graph.node if n.name == "/attn0/output_alive"]


@pytest.mark.parametrize("written", ["-1e4", "finfo.min", "(1 - m) * -1e4, added"])
def test_no_guard_where_no_row_can_be_dead(written: str) -> None:
    after, _ = passed(self_attention(hide=PADDING[written][0]))
    assert not [n for n in after.graph.node if "alive" in n.name]


def test_the_softmax_stays_in_the_dtype_that_the_graph_asks_for() -> None:
    after, _ = passed(
        self_attention(normalise=NORMALISES["in fp32 between casts"], dtype="float16")
    )
    casts = [n for n in after.graph.node if n.op_type == "Cast"]
    assert [helper.get_node_attr_value(n, "to") for n in casts] == [
        onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16,
    ]  # fmt: skip


# The operator.


def test_form_attention_writes_the_operator() -> None:
    after, done = passed(self_attention(opset=23), "attention")
    assert done.write.name == "write_attention"
    written = node(after, "/attn0/attention")
    assert (written.op_type, written.domain) == ("Attention", "")
    assert helper.get_node_attr_value(written, "scale") == 0.25
    assert "Softmax" not in op_types(after)


def test_the_operator_is_causal_by_its_attribute_alone() -> None:
    """With a mask beside it, TensorRT refuses: then causality goes into the mask."""
    alone, _ = passed(self_attention(hide=CAUSAL["positions compared"], opset=23), "attention")
    beside, _ = passed(self_attention(hide=PADDING["causal, then -inf"][0], opset=23), "attention")
    for model, flag, operands in ((alone, 1, 3), (beside, 0, 4)):
        written = node(model, "/attn0/attention")
        assert helper.get_node_attr_value(written, "is_causal") == flag
        assert len(written.input) == operands


def test_the_operator_has_a_mask_with_a_row_for_each_query() -> None:
    """ONNX Runtime 1.32 refuses one of a single row."""
    after, _ = passed(self_attention(hide=PADDING["-inf"][0], opset=23), "attention")
    mask = node(after, "/attn0/attention").input[3]
    assert mask == node(after, "/attn0/mask").output[0]
    assert node(after, "/attn0/mask").op_type == "Expand"


def test_the_operator_cannot_hide_by_a_number_and_that_is_said() -> None:
    model = self_attention(hide=PADDING["-1e4"][0], opset=23)
    after, done = passed(model, "attention")
    assert "left as it is" in done.write.notes[0]
    assert "the operator can only add" in done.write.notes[0]
    assert "Softmax" in op_types(after)


# Once, and no more.


def every_way() -> dict[str, onnx.ModelProto]:
    ways = {f"scores: {w}": self_attention(score=SCORES[w]) for w in SCORES}
    ways |= {f"causal: {w}": self_attention(hide=CAUSAL[w]) for w in CAUSAL}
    ways |= {f"mask: {w}": self_attention(hide=HIDES[w][0]) for w in HIDES}
    ways |= {
        f"padding: {w}": self_attention(hide=PADDING[w][0], output_bias=True) for w in PADDING
    }
    ways |= {
        f"softmax: {w}": self_attention(normalise=NORMALISES[w])
        for w in ("plain", "with a NaN guard")
    }
    ways |= {
        f"heads: {w}": self_attention(make_heads=m)
        for w, m in {**MADE, "interleaved": interleaved}.items()
    }
    ways |= {f"repeat: {w}": self_attention(make_heads=_repeat(w)) for w in REPEATS}
    ways |= {"bmm": bmm_attention(), "operator": operator_attention(mask="bool")}
    return ways


def _repeat(written: str) -> Callable[[Net, str], Heads]:
    return lambda net, x: repeated(net, x, REPEATS[written], 2)


WAYS = every_way()


@pytest.mark.parametrize("way", WAYS)
def test_a_second_run_changes_nothing(way: str) -> None:
    once, _ = passed(WAYS[way])
    again, done = passed(once)
    assert not done.changed, done
    assert again.graph.node == once.graph.node


@pytest.mark.parametrize("way", WAYS)
def test_what_was_written_is_recognised_as_the_same(way: str) -> None:
    (before,) = inspect_net(WAYS[way]).attentions
    (after,) = inspect_net(passed(WAYS[way])[0]).attentions
    same = ("heads", "kv_heads", "head_size", "mask", "causal", "dead_rows", "recognised")
    assert [getattr(after, f) for f in same] == [getattr(before, f) for f in same]
    assert after.scale == pytest.approx(before.scale)


FORMS: tuple[Form, ...] = ("pattern", "attention")


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_from_one_form_to_the_other_and_back(first: Form, second: Form) -> None:
    model = self_attention(hide=CAUSAL["positions compared"], opset=23)
    once, _ = passed(model, first)
    twice, done = passed(once, second)
    assert done.write.changed == (first != second)
    assert ("Attention" in op_types(twice)) == (second == "attention")


# What is left as it is.


def softcapped(net: Net, scores: str) -> str:
    return net.op("Mul", net.op("Tanh", net.op("Div", scores, 30.0)), 30.0)


def test_what_is_not_understood_is_left_as_it_is_and_said() -> None:
    model = self_attention(hide=softcapped)
    after, done = passed(model)
    assert done.write.changed == 0
    assert done.write.notes[0].startswith("attn0: left as it is: softcap")
    assert done.merge.changed == 1  # the projections do not mind
    assert "Tanh" in op_types(after)


def test_returned_weights_stay_an_output() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    weights = softmax(net, scaled_product(net, q, k))
    output = project(net, merge_heads(net, net.op("MatMul", weights, v)))
    after, done = passed(net.model(output, weights))
    assert [value.name for value in after.graph.output] == [output, weights]
    assert "weights are used or returned" in done.write.notes[0]


def test_a_context_that_is_an_output_keeps_its_name() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    scores = net.op("Where", causal_visible(net), scaled_product(net, q, k), HIDDEN)
    context = net.op("MatMul", softmax(net, scores), v)
    after, _ = passed(net.model(context))
    (output,) = after.graph.output
    assert len(output.type.tensor_type.shape.dim) == 4
    assert output.name == context
