"""Before and after the passes: masks wrapped in movement, masks that say nothing, sinks."""

from __future__ import annotations

import onnx
import pytest
from tests.export.nets import (
    WIDTH,
    Net,
    passed,
    scaled_product,
    self_attention,
    separate,
    softmax,
)
from tests.export.test_passes_keep_numbers import FORMS, assert_kept
from tests.export.ways_masks import COVERED, HIDDEN, UNCOVERED, WRAPPED, Hide, bool_input
from tests.export.ways_scores import with_sink

from attnport.export.records import Form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("written", WRAPPED)
def test_masks_however_they_are_wrapped(written: str, form: Form) -> None:
    opset = 23 if form == "attention" else 18
    model = self_attention(hide=WRAPPED[written][0], opset=opset, output_bias=True)
    after = assert_kept(model, form)
    assert passed(after, form)[1].changed == 0


def flat_output_projection(mask: Hide) -> onnx.ModelProto:
    """torch.nn.MultiheadAttention: rows flattened for one Gemm with a bias, and parted again."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    context = net.op("MatMul", softmax(net, mask(net, scaled_product(net, q, k))), v)
    turned = net.op("Transpose", context, perm=[2, 0, 1, 3])
    rows = net.op("Reshape", turned, [-1, WIDTH])
    product = net.op("Gemm", rows, net.weight(), net.vector(), transB=1)
    sizes = [net.op("Shape", x, start=axis, end=axis + 1) for axis in (1, 0)]
    parted = net.op("Reshape", product, net.op("Concat", *sizes, [WIDTH], axis=0))
    return net.model(net.op("Transpose", parted, perm=[1, 0, 2]))


def test_the_guard_behind_a_bias_leaves_the_bias() -> None:
    model = flat_output_projection(WRAPPED["torch.nn's key_padding_mask"][0])
    after = assert_kept(model)
    guards = [n for n in after.graph.node if n.op_type == "Where" and "alive" in n.name]
    assert len(guards) == 1
    product = next(n for n in after.graph.node if n.op_type == "Gemm")
    assert guards[0].input[2] == product.input[2]  # in place of a dead row stands the bias
    assert passed(after)[1].changed == 0


@pytest.mark.parametrize("written", [*COVERED, *UNCOVERED])
def test_numbers_added_where_another_mask_hides(written: str) -> None:
    hide = COVERED[written][0] if written in COVERED else UNCOVERED[written]
    after = assert_kept(self_attention(hide=hide, output_bias=True))
    assert passed(after)[1].changed == 0


def test_a_sink_is_left_beside_the_merged_projections() -> None:
    model = self_attention(
        hide=lambda n, s: n.op("Where", bool_input(n), s, HIDDEN), normalise=with_sink
    )
    after = assert_kept(model)
    _, again = passed(after)
    assert again.changed == 0
