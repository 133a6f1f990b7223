"""The builder's table, from lines that TensorRT for RTX 1.7.1 wrote."""

from __future__ import annotations

import json

import pytest

from attnport.engines.layer_table import parse_inspections, parse_layer_tables
from attnport.errors import InternalError

_TENSOR = (
    "{ Name: x, Dimensions: [-1,-1,128], Strides: [-1,128,1], StrideOrder: [2,1,0], "
    "Datatype: Half, Format: (Linear) Row major linear format }"
)
RECORDED = f"""Layers:
Name: __mye5153_0_myl0_0, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 0, Metadata: {""}
Name: /attn0/v+/attn0/k+/attn0/q_myl0_2, LayerType: gemm, Inputs: [ {_TENSOR}], Constants: [ {_TENSOR}, {_TENSOR}], Outputs: [ {_TENSOR}], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: [ONNX Layer: /attn0/v][ONNX Layer: /attn0/k][ONNX Layer: /attn0/q]
Name: _gemm_mha_v2_myl0_7, LayerType: kgen, Inputs: [ {_TENSOR}], Constants: [], Outputs: [ {_TENSOR}], TacticName: _gemm_mha_v2_0x0b32993f692db562e793da9c96553661, StreamId: 0, Metadata: [ONNX Layer: /attn0/context][ONNX Layer: /attn0/softmax\x1e[ONNX Layer: /attn0/scores][ONNX Layer: /attn0/scores]
Name: __myl_FcAdd_myl0_8, LayerType: runtime_fusion, Inputs: [ {_TENSOR}], Constants: [], Outputs: [ {_TENSOR}], TacticName: , StreamId: 0, Metadata: [ONNX Layer: /attn0/out][ONNX Layer: /res]
Name: /attn0/scores [profile 1]_myl1_7, LayerType: gemm, Inputs: [], Constants: [], Outputs: [], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: [ONNX Layer: /attn0/scores]

I/O Tensors:
 Name: x, IOMode: Input, DataType: Half, Dimensions: [-1,-1,128], Location: Device
"""


def test_rows_of_the_table() -> None:
    layers = parse_layer_tables(["Parsing node: x", RECORDED])
    assert [layer.type for layer in layers] == [
        "shape_call",
        "gemm",
        "kgen",
        "runtime_fusion",
        "gemm",
    ]
    assert [layer.profile for layer in layers] == [0, 0, 0, 0, 1]
    assert layers[0].tactic is None
    assert layers[0].nodes == ()
    assert layers[1].nodes == ("/attn0/v", "/attn0/k", "/attn0/q")
    assert layers[2].name == "_gemm_mha_v2_myl0_7"
    assert layers[2].tactic == "_gemm_mha_v2_0x0b32993f692db562e793da9c96553661"
    assert layers[2].nodes == ("/attn0/context", "/attn0/softmax", "/attn0/scores")
    assert [layer.is_kernel for layer in layers] == [False, True, True, True, True]


def test_profiles_are_numbered_from_0_where_a_copy_stands_before_the_first() -> None:
    copy = (
        "Name: [ShapeHostToDeviceCopy 0], LayerType: ShapeHostToDevice, TacticName: , Metadata: "
    )
    shifted = RECORDED.replace("_myl1_", "_myl2_").replace("_myl0_", "_myl1_")
    layers = parse_layer_tables([shifted.replace("Layers:\n", f"Layers:\n{copy}\n")])
    assert [layer.profile for layer in layers] == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("messages", [[], ["Layers:\n"], ["Engine Metadata:\n"]])
def test_a_builder_that_says_nothing_is_an_error_of_ours(messages: list[str]) -> None:
    with pytest.raises(InternalError, match="no table of layers"):
        parse_layer_tables(messages)


def test_the_inspectors_layers_are_read_for_each_profile() -> None:
    """In the form that the documentation of TensorRT 10 and 11 gives."""
    layer = {
        "Name": "_gemm_mha_v2_myl0_7",
        "LayerType": "kgen",
        "TacticName": "_gemm_mha_v2_0xab",
        "Metadata": "[ONNX Layer: /attn0/context]\x1e[ONNX Layer: /attn0/scores]",
    }
    documents = [json.dumps({"Layers": [layer, "a bare name"]}), json.dumps({"Layers": [layer]})]
    first, second = parse_inspections(documents)
    assert (first.profile, second.profile) == (0, 1)
    assert first.nodes == ("/attn0/context", "/attn0/scores")
    assert (first.type, first.tactic, first.is_kernel) == ("kgen", "_gemm_mha_v2_0xab", True)


def test_an_inspector_that_tells_nothing_proves_nothing() -> None:
    with pytest.raises(InternalError, match="tells of no layer"):
        parse_inspections([json.dumps({"Layers": ["only names"]})])
