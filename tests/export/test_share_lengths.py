"""Lengths that have an input's name are read there; others stay."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
from tests.export.evaluation import assert_same_numbers, normal
from tests.export.nets import (
    WIDTH,
    Net,
    causal_visible,
    merge_heads,
    passed,
    project,
    scaled_product,
    separate,
    softmax,
    to_ir,
)

from attnport.export.share_lengths import share_lengths


def hide(net: Net, scores: str) -> str:
    return net.op("Add", scores, net.op("Where", causal_visible(net), 0.0, -float("inf")))


def shared(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    found = to_ir(onnx.shape_inference.infer_shapes(model, data_prop=True))
    changed = share_lengths(found.graph).changed
    lowered = ir.serde.serialize_model(found)
    onnx.checker.check_model(lowered, full_check=True)
    return lowered, changed


def lengths_of_what_nodes_made(model: onnx.ModelProto) -> int:
    inputs = {value.name for value in model.graph.input}
    return sum(n.op_type == "Shape" and n.input[0] not in inputs for n in model.graph.node)


def two_layers() -> onnx.ModelProto:
    """With the shape between them noted, as torch.onnx notes it."""
    net = Net()
    rows = [net.input("x", ["batch", "seq", WIDTH])]
    for _ in range(2):
        q, k, v = separate(net, rows[-1])
        context = net.op("MatMul", softmax(net, hide(net, scaled_product(net, q, k))), v)
        rows.append(project(net, merge_heads(net, context)))
    model = net.model(rows[-1])
    noted = onnx.helper.make_tensor_value_info(rows[1], 1, ["batch", "seq", WIDTH])
    model.graph.value_info.append(noted)
    return passed(model)[0]


def test_queries_and_keys_are_as_long_as_the_input() -> None:
    model = two_layers()
    before = lengths_of_what_nodes_made(model)
    assert before > 0
    lowered, changed = shared(model)
    assert (changed, lengths_of_what_nodes_made(lowered)) == (before, 0)
    assert_same_numbers(
        model, lowered, [{"x": normal((b, n, WIDTH))} for b, n in ((1, 1), (3, 9))]
    )
    assert shared(lowered)[1] == 0


def test_scalars_of_all_inputs_are_one() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        "net (float[a,b] x, float[a,b] z) => (int64 y, int64 w) {\n"
        "n = Shape <start = 0, end = 1> (x)\nm = Shape <start = 1, end = 2> (z)\n"
        "k = Shape <start = 1, end = 2> (x)\nl = Shape <start = 0, end = 1> (z)\n"
        "ns = Squeeze (n)\nms = Squeeze (m)\nks = Squeeze (k)\nls = Squeeze (l)\n"
        "y = Add (ns, ms)\nw = Mul (ks, ls)\n}"
    )
    lowered, changed = shared(onnx.parser.parse_model(text))
    assert changed == 4
    kinds = [node.op_type for node in lowered.graph.node]
    assert (kinds.count("Shape"), kinds.count("Squeeze")) == (2, 2)
    assert shared(lowered)[1] == 0


def test_a_length_of_another_name_stays() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        "net (float[a,b] x) => (int64[1] y) { t = Concat <axis = 1> (x, x)\n"
        "z = NonZero (t)\n y = Shape <start = 1, end = 2> (z) }"
    )
    assert shared(onnx.parser.parse_model(text))[1] == 0


def test_onnx_runtime_makes_one_mask_for_two_layers(tmp_path: Path) -> None:
    def triangles(model: onnx.ModelProto) -> int:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        optimized = onnx.load(options.optimized_model_filepath)
        return sum(node.op_type == "GreaterOrEqual" for node in optimized.graph.node)

    model = two_layers()
    assert triangles(model) == 2
    assert triangles(shared(model)[0]) == 1
