"""Causal attentions in chunks: the same numbers at any length, and what must be left alone."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import AXES, WIDTH, Net, causal_visible, passed, self_attention, to_ir

from attnport.export.chunk_causal import chunk_causal
from attnport.export.passes import inspect_graph


def hide(net: Net, scores: str) -> str:
    return net.op("Add", scores, net.op("Where", causal_visible(net), 0.0, -float("inf")))


def cut(model: onnx.ModelProto, chunks: int) -> tuple[onnx.ModelProto, int]:
    lowered = to_ir(model)
    infos = {info.name: info for info in inspect_graph(lowered.graph, AXES).attentions}
    record = chunk_causal(lowered.graph, dict.fromkeys(infos, chunks), infos)
    proto = ir.serde.serialize_model(lowered)
    onnx.checker.check_model(proto, full_check=True)
    return proto, record.changed


@pytest.mark.parametrize("chunks", [2, 4, 8])
def test_the_numbers_stay_at_any_length(chunks: int) -> None:
    model, _ = passed(self_attention(hide=hide))
    lowered, changed = cut(model, chunks)
    assert changed == 1
    assert sum(node.op_type == "Softmax" for node in lowered.graph.node) == chunks
    # Fewer tokens than chunks, as many, and numbers that no chunk divides.
    assert_same_numbers(
        model, lowered, [{"x": normal((2, n, WIDTH))} for n in (1, 2, 3, 5, 8, 13)]
    )


def test_half_precision() -> None:
    model, _ = passed(self_attention(hide=hide, dtype="float16"))
    lowered, changed = cut(model, 4)
    assert changed == 1
    assert_same_numbers(model, lowered, {"x": normal((2, 7, WIDTH), "float16")})


def test_no_score_of_the_whole_square_is_left() -> None:
    model, _ = passed(self_attention(hide=hide))
    lowered, _ = cut(model, 4)
    names = {node.name for node in lowered.graph.node}
    assert "/attn0/scores" not in names
    assert "/attn0/softmax" not in names


def test_other_attentions_are_left_alone() -> None:
    assert cut(passed(self_attention())[0], 4)[1] == 0
