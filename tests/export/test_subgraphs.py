"""Branches, loops and functions: what stands inside is written or passed through, never dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.export.evaluation import Feeds, assert_same_numbers, normal
from tests.export.nets import (
    AXES,
    SIZE,
    WIDTH,
    Done,
    inspect_net,
    op_types,
    passed,
    self_attention,
    to_ir,
)

from attnport.errors import InternalError
from attnport.export.capture_operator import DOMAIN, register_schema
from attnport.export.passes import run_passes

HEADS = 4
SIZES = ((2, 5), (1, 1), (3, 8))
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL


def attention(
    operands: Sequence[str], output: str, domain: str, options: dict[str, Any]
) -> onnx.NodeProto:
    """The captured function, or the operator that means the same."""
    kept = {k: v for k, v in options.items() if domain or k != "enable_gqa"}
    return helper.make_node("Attention", operands, [output], name="inner", domain=domain, **kept)


def value(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "net", inputs, [value("y", ["y0", "y1", "y2", "y3"])])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def branches(
    domain: str, mask: str = "", kv: int = HEADS, head_size: int | str = SIZE, **options: Any
) -> onnx.ModelProto:
    """Attention in one branch of an If, over values of the graph around it."""
    operands = ["q", "k", "v", *(["mask"] if mask else [])]
    then = helper.make_graph(
        [attention(operands, "then_y", domain, options)], "then", [], [value("then_y", None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["q"], ["else_y"])], "else", [], [value("else_y", None)]
    )
    node = helper.make_node(
        "If", ["wanted"], ["y"], name="branch", then_branch=then, else_branch=other
    )
    inputs = [value("wanted", [], BOOL), value("q", ["b", HEADS, "n", head_size])]
    inputs += [value(name, ["b", kv, "n", head_size]) for name in "kv"]
    if mask:
        inputs.append(value("mask", ["b", 1, "n", "n"], BOOL if mask == "bool" else FLOAT))
    return model_of([node], inputs)


def feeds_of(model: onnx.ModelProto, b: int, n: int, *, wanted: bool = True) -> Feeds:
    sizes: dict[str, int] = {"b": b, "n": n, "d": SIZE}
    found: dict[str, np.ndarray] = {}
    for index, one in enumerate(model.graph.input):
        dims = one.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        if one.name == "wanted":
            found[one.name] = np.array(wanted)
        elif one.name == "mask":
            seen = np.random.default_rng(n).random(shape) < 0.6
            seen[:, :, 0, 0] = True
            seen[0, :, 1:2] = False
            bias = np.where(seen, 0, -np.inf).astype(np.float32)
            found[one.name] = seen if one.type.tensor_type.elem_type == BOOL else bias
        else:
            found[one.name] = normal(shape, seed=index)
    return found


def written(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Done]:
    register_schema()
    return passed(model)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.5},
    "a head size that is not known": {"head_size": "d"},
    "causal": {"is_causal": 1},
    "bool mask": {"mask": "bool"},
    "additive mask": {"mask": "additive"},
    "grouped": {"kv": 2, "enable_gqa": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_captured_function_in_a_branch(kind: str) -> None:
    meant = branches("", **KINDS[kind])
    after, done = written(branches(DOMAIN, **KINDS[kind]))
    (record,) = [record for record in done.records if record.name == "in_bodies"]
    assert record.changed == 1
    assert "inner: in the body of branch (If): written out" in record.notes[0]
    for b, n in SIZES:
        assert_same_numbers(meant, after, feeds_of(meant, b, n))
    assert_same_numbers(meant, after, feeds_of(meant, 2, 3, wanted=False))


def loop(domain: str) -> onnx.ModelProto:
    """Three rounds of attention over its own result."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            attention(["state", "state", "v"], "next", domain, {"is_causal": 1}),
        ],
        "body",
        [value("round", [], TensorProto.INT64), value("going", [], BOOL),
         value("state", ["b", HEADS, "n", SIZE])],
        [value("still", [], BOOL), value("next", ["b", HEADS, "n", SIZE])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["rounds", "start", "q"], ["y"], name="loop", body=body)
    model = model_of([node], [value(name, ["b", HEADS, "n", SIZE]) for name in "qv"])
    rounds = onnx.numpy_helper.from_array(np.array(3, np.int64), "rounds")
    start = onnx.numpy_helper.from_array(np.array(True), "start")
    model.graph.initializer.extend([rounds, start])
    return model


def test_the_captured_function_in_a_loop() -> None:
    meant = loop("")
    after, done = written(loop(DOMAIN))
    assert done.changed == 1
    for b, n in SIZES:
        assert_same_numbers(meant, after, feeds_of(meant, b, n))


def test_branches_in_branches() -> None:
    def nested(domain: str) -> onnx.ModelProto:
        inner = branches(domain, is_causal=1)
        node = inner.graph.node[0]
        node.output[0] = "inner_y"
        then = helper.make_graph([node], "outer", [], [value("inner_y", None)])
        other = helper.make_graph(
            [helper.make_node("Abs", ["q"], ["abs_y"])], "abs", [], [value("abs_y", None)]
        )
        outer = helper.make_node(
            "If", ["wanted"], ["y"], name="outer", then_branch=then, else_branch=other
        )
        return model_of([outer], list(inner.graph.input))

    meant = nested("")
    after, done = written(nested(DOMAIN))
    assert done.changed == 1
    for wanted in (True, False):
        assert_same_numbers(meant, after, feeds_of(meant, 2, 5, wanted=wanted))


def test_the_operator_in_a_branch_is_passed_through_and_said() -> None:
    before = branches("", is_causal=1)
    after, done = passed(before)
    assert done.changed == 0
    (then,) = [a.g for a in after.graph.node[0].attribute if a.name == "then_branch"]
    assert [node.op_type for node in then.node] == ["Attention"]
    (info,) = inspect_net(after).attentions
    assert not info.recognised
    assert "it stands in the body of branch (If), which is passed through" in info.reason
    assert_same_numbers(before, after, feeds_of(before, 2, 5))


def test_grouped_queries_of_unknown_heads_are_refused() -> None:
    model = branches(DOMAIN, enable_gqa=1)
    for one in model.graph.input:
        if one.name in "qkv":
            one.type.tensor_type.shape.dim[1].dim_param = "h"
    register_schema()
    with pytest.raises(InternalError, match="was captured but not written"):
        run_passes(to_ir(model), AXES)


def with_branch(use: str) -> onnx.ModelProto:
    """A self-attention of which a branch uses the scores, the probabilities or the context."""
    model = self_attention()
    graph = model.graph
    names = {
        "query": next(n.output[0] for n in graph.node if n.op_type == "Transpose"),
        "probabilities": next(n.output[0] for n in graph.node if n.op_type == "Softmax"),
        "context": [n.output[0] for n in graph.node if n.op_type == "MatMul"][-2],
        "rows": [n.output[0] for n in graph.node if n.op_type == "Reshape"][-1],
    }
    then = helper.make_graph(
        [helper.make_node("ReduceSum", [names[use]], ["t"], keepdims=0)], "then", [],
        [value("t", None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("ReduceMean", [names[use]], ["e"], keepdims=0)], "else", [],
        [value("e", None)],
    )  # fmt: skip
    node = helper.make_node(
        "If", ["wanted"], ["used"], name="branch", then_branch=then, else_branch=other
    )
    last = graph.node[-1]
    result = last.output[0]
    last.output[0] = "before"
    graph.node.extend([node, helper.make_node("Add", ["before", "used"], [result])])
    graph.input.append(value("wanted", [], BOOL))
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("use", ["query", "probabilities", "context", "rows"])
def test_a_branch_that_uses_what_the_attention_makes(use: str) -> None:
    before = with_branch(use)
    after, _ = passed(before)
    for wanted in (True, False):
        feeds = {"x": normal((2, 5, WIDTH)), "wanted": np.array(wanted)}
        assert_same_numbers(before, after, feeds)


def test_a_function_is_inlined() -> None:
    model = self_attention()
    function = helper.make_function(
        "our.functions", "Block", ["x"], [model.graph.output[0].name], list(model.graph.node),
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    del function.node[:]
    function.node.extend([*constants, *model.graph.node])
    call = helper.make_node("Block", ["x"], ["y"], domain="our.functions", name="call")
    graph = helper.make_graph(
        [call], "net", list(model.graph.input), [value("y", ["batch", "seq", WIDTH])]
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("our.functions", 1)]
    before = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)
    after, done = passed(before)
    assert done.merge.changed == done.write.changed == 1
    assert "Block" not in op_types(after)
    assert not after.functions
    assert_same_numbers(model, after, {"x": normal((2, 5, WIDTH))})


def test_the_file_can_be_read_again() -> None:
    after, _ = written(branches(DOMAIN, mask="bool"))
    again = ir.serde.deserialize_model(after)
    assert not any(run.changed for run in run_passes(again, AXES))
