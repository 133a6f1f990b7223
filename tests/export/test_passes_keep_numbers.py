"""Before and after the passes: the same numbers, from every way of writing attention.

The graph after is run by ONNX Runtime; the reference is the float64 value of the graph before, and
the tolerance the parity bound of that very case. Sizes are several, dead rows among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.export.evaluation import (
    Feeds,
    Runner,
    assert_close,
    assert_same_numbers,
    errors,
    references,
    run_in_ort,
)
from tests.export.nets import (
    SIZE,
    WIDTH,
    Heads,
    Net,
    causal_visible,
    merge_heads,
    passed,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
)
from tests.export.ways_heads import MADE, REPEATS, by_einsum, interleaved, repeated
from tests.export.ways_masks import (
    ALMOST_CAUSAL,
    CAUSAL,
    HIDDEN,
    HIDES,
    LOWEST,
    NUMBERS,
    PADDING,
    bool_input,
    pad,
)
from tests.export.ways_scores import (
    NORMALISES,
    SCORES,
    bmm_attention,
    operator_attention,
)

from attnport.export.arrays import numpy_dtype
from attnport.export.records import Form

SIZES = ((1, 1), (3, 5), (2, 16))
FORMS: tuple[Form, ...] = ("pattern", "attention")


def shape_of(value: onnx.ValueInfoProto, sizes: dict[str, int]) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims)


def drawn(model: onnx.ModelProto, batch: int, seq: int, *, dead: bool) -> Feeds:
    """Inputs: normal numbers, and masks of which a row may hide all."""
    rng = np.random.default_rng(batch * 100 + seq)
    feeds = {}
    for value in model.graph.input:
        shape = shape_of(value, {"batch": batch, "seq": seq, "keys": seq + 3})
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name in ("mask", "pad", "keep"):
            visible = rng.random(shape) < 0.6
            visible[..., 0] = True
            if dead:
                visible[(-1, ..., -1, slice(None)) if len(shape) > 2 else -1] = False
            if hides_where_true(model, value.name):
                visible = ~visible
            added = value.name != "keep" and kind.kind == "f" and is_added(model, value.name)
            array = np.where(visible, 0.0, -np.inf) if added else visible
        else:
            array = rng.standard_normal(shape)
        feeds[value.name] = array.astype(kind)
    return feeds


def is_added(model: onnx.ModelProto, name: str) -> bool:
    return any(name in node.input and node.op_type == "Add" for node in model.graph.node)


def hides_where_true(model: onnx.ModelProto, name: str) -> bool:
    """Where(mask, -inf, scores)."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return any(
        node.op_type == "Where"
        and node.input[0] == name
        and (node.input[1] in constants, node.input[2] in constants) == (True, False)
        for node in model.graph.node
    )


def cases(model: onnx.ModelProto) -> Iterator[Feeds]:
    for batch, seq in SIZES:
        yield drawn(model, batch, seq, dead=False)
    if len(model.graph.input) > 1:
        yield drawn(model, 2, 6, dead=True)


def assert_kept(
    model: onnx.ModelProto, form: Form = "pattern", run: Runner = run_in_ort
) -> onnx.ModelProto:
    """Rewrites, and compares at every size; something must have been rewritten."""
    after, done = passed(model, form)
    assert done.changed, done
    assert_same_numbers(model, after, list(cases(model)), run)
    return after


@pytest.mark.parametrize("written", SCORES)
def test_scores(written: str) -> None:
    assert_kept(self_attention(score=SCORES[written]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("written", HIDES)
def test_masks(written: str, form: Form) -> None:
    opset = 23 if form == "attention" else 18
    model = self_attention(hide=HIDES[written][0], opset=opset)
    assert_kept(model, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("written", PADDING)
def test_padding(written: str, form: Form) -> None:
    opset = 23 if form == "attention" else 18
    model = self_attention(hide=PADDING[written][0], opset=opset, output_bias=True)
    assert_kept(model, form)


@pytest.mark.parametrize("written", NUMBERS)
def test_masks_by_numbers_beside_each_other(written: str) -> None:
    """Where one hides the whole row, what another one hides by a number is what is seen."""
    assert_kept(self_attention(hide=NUMBERS[written], output_bias=True))


@pytest.mark.parametrize("written", CAUSAL)
def test_causality(written: str) -> None:
    assert_kept(self_attention(hide=CAUSAL[written]))


@pytest.mark.parametrize("written", ALMOST_CAUSAL)
def test_what_is_almost_causal(written: str) -> None:
    def hide(net: Net, scores: str) -> str:
        return net.op("Where", ALMOST_CAUSAL[written](net), scores, HIDDEN)

    # With a bias, since a single token may see nothing: an output of zeros would prove nothing.
    assert_kept(self_attention(hide=hide, output_bias=True))


def test_causality_as_the_operator() -> None:
    hide = CAUSAL["positions compared"]
    assert_kept(self_attention(hide=hide, opset=23), "attention")


@pytest.mark.parametrize("written", NORMALISES)
def test_softmaxes(written: str) -> None:
    dtype = "float16" if "fp32" in written else "float32"
    assert_kept(self_attention(normalise=NORMALISES[written], dtype=dtype))


def test_a_guard_that_lived_on_nan_gives_dead_rows_zero() -> None:
    model = self_attention(
        hide=lambda n, s: n.op("Where", bool_input(n), s, HIDDEN),
        normalise=NORMALISES["with a NaN guard"],
    )
    after = assert_kept(model)
    assert "IsNaN" not in [node.op_type for node in after.graph.node]


@pytest.mark.parametrize("made", [*MADE, "interleaved", "Einsum with heads"])
def test_heads(made: str) -> None:
    ways = {**MADE, "interleaved": interleaved, "Einsum with heads": by_einsum}
    assert_kept(self_attention(make_heads=ways[made]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("repeat", REPEATS)
def test_grouped_queries(repeat: str, form: Form) -> None:
    def make(net: Net, x: str) -> Heads:
        return repeated(net, x, REPEATS[repeat], 2)

    # The scale of the helper is that of heads twice as large: any number will do.
    assert_kept(self_attention(make_heads=make, opset=23), form)


def test_batched_products_of_three_axes() -> None:
    assert_kept(bmm_attention())


@pytest.mark.parametrize("mask", [None, "bool", "float32"])
@pytest.mark.parametrize("three_axes", [False, True])
def test_operator_becomes_the_pattern(three_axes: bool, mask: str | None) -> None:
    causal = int(mask is None and not three_axes)
    assert_kept(operator_attention(three_axes=three_axes, mask=mask, is_causal=causal))


def test_operator_with_causality_and_a_mask() -> None:
    assert_kept(operator_attention(mask="bool", is_causal=1))


def cross_attention(*, bias: bool = False) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    memory = net.input("memory", ["batch", "keys", WIDTH])
    net.input("mask", ["batch", 1, 1, "keys"], "bool")
    q = net.op("Transpose", net.op("Reshape", project(net, x, bias=bias), [0, 0, 2, SIZE]),
               perm=[0, 2, 1, 3])  # fmt: skip
    k, v = (
        net.op("Transpose", net.op("Reshape", project(net, memory, bias=bias), [0, 0, 2, SIZE]),
               perm=[0, 2, 1, 3])
        for _ in range(2)
    )  # fmt: skip
    scores = net.op("Where", "mask", scaled_product(net, q, k), HIDDEN)
    rows = merge_heads(net, net.op("MatMul", softmax(net, scores), v))
    return net.model(project(net, rows, bias=True))


@pytest.mark.parametrize("bias", [False, True])
def test_cross_attention_with_other_lengths(bias: bool) -> None:
    assert_kept(cross_attention(bias=bias))


@pytest.mark.parametrize("dtype", ["float16"])
@pytest.mark.parametrize("hidden", [-math.inf, -1e4, float(np.finfo(np.float16).min)])
def test_half_precision(dtype: str, hidden: float) -> None:
    model = self_attention(hide=lambda n, s: n.op("Where", bool_input(n), s, hidden), dtype=dtype)
    assert_kept(model)


def test_half_precision_beside_causality() -> None:
    model = self_attention(
        hide=lambda n, s: n.op(
            "Where", pad(n), n.op("Where", causal_visible(n), s, -math.inf), -math.inf
        ),
        dtype="float16",
    )
    assert_kept(model)


def test_causality_by_a_number_beside_dead_padding() -> None:
    """Rows whose past is padded see the future at finfo.min: the module's own arithmetic."""
    model = self_attention(
        hide=lambda n, s: n.op(
            "Where", pad(n), n.op("Where", causal_visible(n), s, LOWEST), HIDDEN
        )
    )
    after, _ = passed(model)
    left_padded = np.array([[[[False, False, True, True, True]]]])
    x = np.random.default_rng(0).standard_normal((1, 5, WIDTH)).astype(np.float32)
    assert_same_numbers(model, after, {"x": x, "pad": left_padded})


def guarded_block(*, guard: bool) -> onnx.ModelProto:
    """A pre-LN block whose author guards dead rows on the context."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    mask = bool_input(net)
    normed = net.op("LayerNormalization", x, net.vector(), net.vector(), axis=-1)
    q, k, v = separate(net, normed)
    scores = net.op("Where", mask, scaled_product(net, q, k), HIDDEN)
    context = net.op("MatMul", softmax(net, scores), v)
    if guard:
        number = net.op("ReduceMax", net.op("Cast", mask, to=1), [-1], keepdims=1)
        context = net.op("Where", net.op("Greater", number, 0.0), context, 0.0)
    return net.model(net.op("Add", x, project(net, merge_heads(net, context), bias=True)))


@pytest.mark.parametrize("guard", [False, True])
def test_one_guard_for_dead_rows_whoever_wrote_it(guard: bool) -> None:
    after = assert_kept(guarded_block(guard=guard))
    wheres = [node.output[0] for node in after.graph.node if node.op_type == "Where"]
    assert len(wheres) == 2  # the mask on the scores, and the guard


def test_a_guard_of_another_meaning_is_kept() -> None:
    """Rows that are to be zero though they see a key: `keep` is an input of its own."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    mask = bool_input(net)
    keep = net.input("keep", ["batch", 1, "seq", 1], "bool")
    q, k, v = separate(net, x)
    scores = net.op("Where", mask, scaled_product(net, q, k), HIDDEN)
    context = net.op("Where", keep, net.op("MatMul", softmax(net, scores), v), 0.0)
    assert_kept(net.model(project(net, merge_heads(net, context))))


def test_two_attentions_that_share_a_mask() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    mask = bool_input(net)
    for _ in range(2):
        q, k, v = separate(net, x)
        scores = net.op("Where", mask, scaled_product(net, q, k), HIDDEN)
        rows = merge_heads(net, net.op("MatMul", softmax(net, scores), v))
        x = net.op("Add", x, project(net, rows))
    model = net.model(x)
    after, done = passed(model)
    assert (done.merge.changed, done.write.changed) == (2, 2)
    assert_same_numbers(model, after, list(cases(model)))


# That these comparisons can fail.


@pytest.mark.parametrize("wrong", ["scale", "off by one", "swapped"])
def test_a_wrong_graph_is_outside_the_bound(wrong: str) -> None:
    right = self_attention(hide=CAUSAL["positions compared"])
    if wrong == "scale":
        other = self_attention(score=lambda n, q, k: n.op("Mul", scaled_product(n, q, k), 1.01),
                               hide=CAUSAL["positions compared"])  # fmt: skip
    elif wrong == "off by one":
        other = self_attention(
            hide=lambda n, s: n.op("Where", ALMOST_CAUSAL["one off the other way"](n), s, HIDDEN)
        )
    else:
        other = self_attention(make_heads=swapped, hide=CAUSAL["positions compared"])
    with pytest.raises(AssertionError):
        assert_same_numbers(right, other, list(cases(right)))


def swapped(net: Net, x: str) -> Heads:
    q, k, v = separate(net, x)
    return q, k, net.op("Gather", v, [1, 0], axis=1)


def test_a_nan_is_outside_the_bound() -> None:
    model = self_attention()
    ((truth, known, dtype),) = references(model, drawn(model, 2, 5, dead=False))
    result = truth.astype(numpy_dtype(dtype))
    assert_close(result, truth, known)
    assert errors(result, truth).max > 0
    result[1, 4, 3] = np.nan
    with pytest.raises(AssertionError):
        assert_close(result, truth, known)
