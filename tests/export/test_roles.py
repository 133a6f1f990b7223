"""What each input means is read from the graph, unless the user says."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.export.nets import (
    AXES,
    WIDTH,
    Net,
    project,
    scaled_product,
    self_attention,
    separate,
    softmax,
    to_ir,
)
from tests.export.ways_masks import HIDES, PADDING, bool_input

from attnport.errors import UsageError
from attnport.export.records import TensorSpec
from attnport.export.roles import input_specs, tensor_spec


def specs(model: onnx.ModelProto, given: dict[str, str] | None = None) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in input_specs(to_ir(model).graph, AXES, given)}


MASKS = {
    "Where(visible, scores, -inf)": "mask",
    "Where(hidden, -inf, scores)": "mask",
    "Where(mask == 0, -inf, scores)": "mask",
    "Add of a float mask": "bias",
    "Add(Where(mask, 0, -inf))": "mask",
    "(1 - m) * finfo.min": "mask",
}


@pytest.mark.parametrize("written", MASKS)
def test_masks_and_biases(written: str) -> None:
    found = specs(self_attention(hide=HIDES[written][0]))
    assert found["mask"].role == MASKS[written]
    assert found["x"].role == "activation"


def test_a_mask_beside_a_bias() -> None:
    found = specs(self_attention(hide=HIDES["a bias, and then a mask"][0]))
    assert {name: spec.role for name, spec in found.items()} == {
        "x": "activation", "bias": "bias", "mask": "mask",
    }  # fmt: skip


def test_a_mask_beside_causality() -> None:
    found = specs(self_attention(hide=PADDING["causal and -inf"][0]))
    assert found["pad"].role == "mask"


def embedded(ids: str = "int64") -> onnx.ModelProto:
    net = Net()
    tokens = net.input("tokens", ["batch", "seq"], ids)
    table = net.weight(100, WIDTH)
    x = net.op("Gather", table, tokens)
    place = net.input("places", ["batch", "seq"], "int64")
    x = net.op("Add", x, net.op("Unsqueeze", net.op("Cast", place, to=TensorProto.FLOAT), [2]))
    return net.model(project(net, x))


@pytest.mark.parametrize("ids", ["int64", "int32"])
def test_token_ids_and_how_many_there_are(ids: str) -> None:
    found = specs(embedded(ids))
    assert (found["tokens"].role, found["tokens"].high) == ("token_ids", 100)
    assert (found["places"].role, found["places"].high) == ("positions", None)


def test_indices_that_do_not_look_up_a_table_are_no_tokens() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    chosen = net.input("chosen", [3], "int64")
    found = specs(net.model(net.op("Gather", x, chosen, axis=2)))
    assert (found["chosen"].role, found["chosen"].high) == ("positions", None)


def test_a_bool_that_hides_no_scores_is_a_mask() -> None:
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    keep = net.input("keep", ["batch", "seq", 1], "bool")
    assert specs(net.model(net.op("Where", keep, x, 0.0)))["keep"].role == "mask"


def test_what_scores_are_made_of_is_no_mask() -> None:
    """A bias computed from the activation, as gated or relative biases are."""
    net = Net()
    x = net.input("x", ["batch", "seq", WIDTH])
    q, k, v = separate(net, x)
    bias = net.op("Unsqueeze", net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1])), [1])
    scores = net.op("Add", scaled_product(net, q, k), bias)
    assert specs(net.model(net.op("MatMul", softmax(net, scores), v)))["x"].role == "activation"


def test_an_activation_that_is_a_mask_s_size_only() -> None:
    """The mask's shape comes from x; that does not make a mask of x."""
    assert specs(self_attention(hide=PADDING["causal and -inf"][0]))["x"].role == "activation"


def test_the_user_s_word_is_taken() -> None:
    model = self_attention(hide=lambda n, s: n.op("Where", bool_input(n), s, -np.inf))
    found = specs(model, {"x": "cache", "mask": "positions"})
    assert {name: spec.role for name, spec in found.items()} == {"x": "cache", "mask": "positions"}


def test_token_ids_by_the_user_s_word_have_the_table_s_size() -> None:
    assert specs(embedded(), {"tokens": "lengths"})["tokens"].high is None
    assert specs(embedded(), {"tokens": "token_ids"})["tokens"].high == 100


def test_an_unknown_input_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no input 'y'; the inputs are x"):
        specs(self_attention(), {"y": "mask"})


def test_an_unknown_role_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="'x' cannot be a 'msak': a role is one of activation"):
        specs(self_attention(), {"x": "msak"})


def test_shapes_and_dtypes() -> None:
    value = to_ir(self_attention(dtype="float16")).graph.inputs[0]
    spec = tensor_spec(value)
    assert (spec.shape, spec.dtype, spec.role) == (
        ("batch", "seq", WIDTH),
        "float16",
        "activation",
    )
