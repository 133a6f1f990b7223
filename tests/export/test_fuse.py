"""A file in, a file out: what is said, what is kept, and that nothing half-written is left."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import (
    SIZE,
    WIDTH,
    Net,
    merge_heads,
    op_types,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
    turn,
)
from tests.export.ways_scores import operator_attention

from attnport.errors import GraphError, UsageError
from attnport.export.fuse import Fused, fuse_file
from attnport.export.onnx_file import EXTERNAL_BYTES, inspect_model

FEEDS = [{"x": normal((b, n, WIDTH), seed=n)} for b, n in ((2, 5), (1, 1), (3, 8))]


def fused(model: onnx.ModelProto, folder: Path) -> tuple[Fused, onnx.ModelProto]:
    onnx.save(model, folder / "in.onnx")
    done = fuse_file(folder / "in.onnx", folder / "out.onnx")
    return done, onnx.load(folder / "out.onnx")


def test_the_numbers_are_kept_and_what_was_done_is_said(tmp_path: Path) -> None:
    before = self_attention()
    done, after = fused(before, tmp_path)
    assert done.complete
    assert [(o.name, o.kind) for o in done.outcomes] == [
        ("attn0", "attention"), ("attn0/qkv", "projections"),
    ]  # fmt: skip
    assert "became the canonical pattern" in done.outcomes[0].what
    assert "became one MatMul" in done.outcomes[1].what
    assert_same_numbers(before, after, FEEDS)


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    fused(self_attention(), tmp_path)
    again = fuse_file(tmp_path / "out.onnx", tmp_path / "again.onnx")
    assert again.complete
    assert not any(record.changed for record in again.passes)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()


def test_the_file_may_be_written_over(tmp_path: Path) -> None:
    before = wide_attention()
    onnx.save(before, tmp_path / "in.onnx", save_as_external_data=True, location="in.onnx.data")
    whole = onnx.load(tmp_path / "in.onnx")
    done = fuse_file(tmp_path / "in.onnx", tmp_path / "in.onnx")
    assert done.complete
    assert {path.name for path in tmp_path.iterdir()} == {"in.onnx", "in.onnx.data"}
    after = onnx.load(tmp_path / "in.onnx")
    assert_same_numbers(whole, after, {"x": normal((2, 3, 512))})


def wide_attention() -> onnx.ModelProto:
    """Four weights of a mebibyte each."""
    net = Net()
    x = net.input("x", ["batch", "seq", 512])
    q, k, v = (
        net.op(
            "Transpose",
            net.op("Reshape", net.op("MatMul", x, net.weight(512, 512)), [0, 0, 32, SIZE]),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    context = net.op("MatMul", softmax(net, scaled_product(net, q, k)), v)
    rows = merge_heads(net, context, 512)
    return net.model(net.op("MatMul", rows, net.weight(512, 512)))


def test_weights_are_beside_it_and_stored_once(tmp_path: Path) -> None:
    fused(wide_attention(), tmp_path)
    # The merged weight is of three mebibytes; W_O, of one and no more, stays in the graph.
    assert (tmp_path / "out.onnx.data").stat().st_size == 3 * EXTERNAL_BYTES
    assert (tmp_path / "out.onnx").stat().st_size < 1.1 * EXTERNAL_BYTES


def test_a_weight_that_is_stored_twice_is_written_once(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    weight = np.random.default_rng(0).standard_normal((WIDTH, 16384)).astype(np.float32)
    pair = [net.op("MatMul", x, weight.copy()) for _ in range(2)]
    done, _ = fused(net.model(net.op("Add", *pair)), tmp_path)
    assert (tmp_path / "out.onnx.data").stat().st_size == weight.nbytes
    assert done.outcomes == ()


def test_weights_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    before = wide_attention()
    onnx.save(
        before, tmp_path / "there" / "in.onnx", save_as_external_data=True, location="weights.bin"
    )
    done = fuse_file(tmp_path / "there" / "in.onnx", tmp_path / "here" / "out.onnx")
    assert done.complete
    assert {p.name for p in (tmp_path / "here").iterdir()} == {"out.onnx", "out.onnx.data"}


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_the_operator_is_of_opset_23(opset: int, tmp_path: Path) -> None:
    before = self_attention(opset=opset)
    onnx.save(before, tmp_path / "in.onnx")
    done = fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx", form="attention")
    after = onnx.load(tmp_path / "out.onnx")
    assert done.opset == 23
    assert "Attention" in op_types(after)
    assert_same_numbers(before, after, FEEDS)


def test_the_operator_of_an_old_file_is_refused(tmp_path: Path) -> None:
    model = self_attention()
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.raises(GraphError, match=r"opset 17, and .* needs 23: export .* --form pattern"):
        fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx", form="attention")
    assert not (tmp_path / "out.onnx").exists()


def test_weights_that_are_inputs_as_well(tmp_path: Path) -> None:
    """As files of old exporters have them: each initializer is an input of the graph, too."""
    before = self_attention()
    for tensor in list(before.graph.initializer):
        shape = list(tensor.dims)
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
        before.graph.input.append(value)
    done, after = fused(before, tmp_path)
    assert done.complete
    assert [value.name for value in after.graph.input] == ["x"]
    assert done.passes[0].changed == len(before.graph.initializer)
    assert_same_numbers(before, after, FEEDS)


def test_without_attention_all_is_passed_through(tmp_path: Path) -> None:
    net = Net()
    before = net.model(project(net, net.input("x", ["batch", "seq", WIDTH])))
    done, after = fused(before, tmp_path)
    assert done.outcomes == ()
    assert op_types(after) == op_types(before)


def strange(where: str) -> onnx.ModelProto:
    net = Net()
    q, k, v = separate(net, net.input("x", ["batch", "seq", WIDTH]))
    scores = scaled_product(net, q, k)
    if where == "scores":
        scores = net.op("Sigmoid", scores)
    weights = softmax(net, scores)
    if where == "probabilities":
        weights = net.op("Sqrt", weights)
    context = net.op("MatMul", weights, v)
    return net.model(project(net, merge_heads(net, context)))


@pytest.mark.parametrize(
    ("where", "blamed"), [("scores", "scores come through .*Sigmoid"), ("probabilities", "Sqrt")]
)
def test_the_node_that_broke_the_match_is_named(where: str, blamed: str, tmp_path: Path) -> None:
    before = strange(where)
    done, after = fused(before, tmp_path)
    assert not done.complete
    (outcome,) = done.outcomes
    assert not outcome.done
    assert re.search(blamed, outcome.what)
    assert_same_numbers(before, after, FEEDS)
    (info,) = inspect_model(tmp_path / "in.onnx").attentions
    assert not info.recognised
    assert info.reason == outcome.what


def test_a_softmax_of_a_classifier_is_no_attention(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    before = net.model(project(net, softmax(net, project(net, x))))
    done, _ = fused(before, tmp_path)
    assert done.outcomes == ()


def test_softcap_is_said_to_be_left(tmp_path: Path) -> None:
    done, after = fused(operator_attention(softcap=2.0), tmp_path)
    attention = done.outcomes[0]
    assert (attention.done, attention.kind) == (False, "attention")
    assert "softcap" in attention.what
    assert "Attention" in op_types(after)


def test_a_custom_operator_is_passed_through_and_said(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    (made,) = net.ops("MultiHeadAttention", 1, x, x, x, domain="com.microsoft", num_heads=2)
    done, after = fused(net.model(net.op("Add", made, x)), tmp_path)
    assert "MultiHeadAttention" in op_types(after)
    (outcome,) = done.outcomes
    assert "com.microsoft.MultiHeadAttention is no operator of the ONNX standard" in outcome.what


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    onnx.save(self_attention(), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match="is a folder: give the path"):
        fuse_file(tmp_path / "in.onnx", tmp_path)


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    onnx.save(self_attention(), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match="cannot be written"):
        fuse_file(tmp_path / "in.onnx", tmp_path / "in.onnx" / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_a_file_that_is_cut_short_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(self_attention().SerializeToString()[:500])
    with pytest.raises(GraphError, match="cut short"):
        fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_projections_of_which_one_is_used_elsewhere(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    rows = [project(net, x) for _ in range(3)]
    q, k, v = (
        net.op("Transpose", net.op("Reshape", r, [0, 0, 2, SIZE]), perm=[0, 2, 1, 3]) for r in rows
    )
    weights = softmax(net, net.op("Mul", net.op("MatMul", q, turn(net, k)), SIZE**-0.5))
    context = merge_heads(net, net.op("MatMul", weights, v))
    before = net.model(net.op("Add", context, rows[2]))
    done, after = fused(before, tmp_path)
    group = done.outcomes[1]
    assert not group.done
    assert "value projection is also used elsewhere" in group.what
    assert_same_numbers(before, after, FEEDS)
