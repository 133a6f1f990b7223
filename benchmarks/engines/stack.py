"""A bundle of L attention layers, D=4096 H=32 in fp16, written without holding its weights.

Each layer is the canonical pattern with a residual: x + Attention(x)·W_O. A layer has 4·D² weights,
134 MB; the file of weights is written one matrix at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.records import AttentionInfo, Manifest, ProjectionGroup, TensorSpec

WIDTH, HEADS = 4096, 32
HEAD_SIZE = WIDTH // HEADS
AXES = {"batch": (1, 1, 4), "seq": (1, 512, 2048)}
_X = TensorSpec(name="x", dtype="float16", shape=("batch", "seq", WIDTH))
_Y = TensorSpec(name="y", dtype="float16", shape=("batch", "seq", WIDTH))


def write_stack(folder: Path, layers: int) -> Bundle:
    """Writes the bundle, without cases.

    Args:
        folder: A new one.
        layers: How many layers.
    """
    folder.mkdir(parents=True)
    data = folder / f"{MODEL}.data"
    nodes: list[NodeProto] = []
    constants = [
        numpy_helper.from_array(np.asarray([WIDTH] * 3, np.int64), "sizes"),
        numpy_helper.from_array(np.asarray([0, 0, HEADS, HEAD_SIZE], np.int64), "part"),
        numpy_helper.from_array(np.asarray([0, 0, WIDTH], np.int64), "merge"),
        numpy_helper.from_array(np.asarray(HEAD_SIZE**-0.5, np.float16), "scale"),
    ]
    with data.open("wb") as stream:
        for layer in range(layers):
            constants += [
                _weight(stream, data.name, f"W_QKV{layer}", 3 * WIDTH, 2 * layer),
                _weight(stream, data.name, f"W_O{layer}", WIDTH, 2 * layer + 1),
            ]
            nodes += _layer(layer, last=layer == layers - 1)
    x, y = (
        helper.make_tensor_value_info(spec.name, TensorProto.FLOAT16, spec.shape)
        for spec in (_X, _Y)
    )
    graph = helper.make_graph(nodes, "stack", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (folder / MODEL).write_bytes(model.SerializeToString())
    (folder / MANIFEST).write_text(_manifest(folder, layers).model_dump_json(), "utf-8")
    return Bundle.load(folder)


def _weight(stream: object, location: str, name: str, columns: int, seed: int) -> TensorProto:
    """A matrix (WIDTH, columns) of the file of weights."""
    values = np.random.default_rng(seed).standard_normal((WIDTH, columns), np.float32)
    content = (values / WIDTH**0.5).astype(np.float16).tobytes()
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=(WIDTH, columns))
    tensor.data_location = TensorProto.EXTERNAL
    offset = stream.tell()  # type: ignore[attr-defined]  # a binary file
    stream.write(content)  # type: ignore[attr-defined]
    for key, value in (("location", location), ("offset", offset), ("length", len(content))):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _layer(number: int, *, last: bool) -> list[NodeProto]:
    at = f"/attn{number}"
    source, target = f"x{number}" if number else "x", "y" if last else f"x{number + 1}"

    def node(operator: str, inputs: list[str], name: str, **attributes: object) -> NodeProto:
        return helper.make_node(operator, inputs, [f"{at}/{name}"], f"{at}/{name}", **attributes)

    parts = [f"{at}/{letter}0" for letter in "qkv"]
    nodes = [
        node("MatMul", [source, f"W_QKV{number}"], "qkv"),
        helper.make_node("Split", [f"{at}/qkv", "sizes"], parts, f"{at}/split", axis=-1),
    ]
    for letter, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(node("Reshape", [f"{at}/{letter}0", "part"], f"{letter}1"))
        nodes.append(node("Transpose", [f"{at}/{letter}1"], letter, perm=perm))
    return [
        *nodes,
        node("Mul", [f"{at}/q", "scale"], "scaled"),
        node("MatMul", [f"{at}/scaled", f"{at}/k"], "scores"),
        node("Softmax", [f"{at}/scores"], "softmax", axis=-1),
        node("MatMul", [f"{at}/softmax", f"{at}/v"], "context"),
        node("Transpose", [f"{at}/context"], "rows", perm=[0, 2, 1, 3]),
        node("Reshape", [f"{at}/rows", "merge"], "merged"),
        node("MatMul", [f"{at}/merged", f"W_O{number}"], "out"),
        helper.make_node("Add", [source, f"{at}/out"], [target], f"{at}/residual"),
    ]


def _manifest(folder: Path, layers: int) -> Manifest:
    files = {name: file_sha256(folder / name) for name in (MODEL, f"{MODEL}.data")}
    return Manifest(
        format_version=FORMAT_VERSION,
        name=f"stack-{layers}",
        source="",
        dtype="float16",
        form="pattern",
        opset=18,
        axes=AXES,
        inputs=(_X,),
        outputs=(_Y,),
        graph_sha256=files[MODEL],
        weights_sha256=files[f"{MODEL}.data"],
        files=files,
        versions={"onnx": onnx.__version__},
        passes=(),
        attentions=tuple(map(_attention, range(layers))),
        projection_groups=tuple(map(_group, range(layers))),
        cases=(),
    )


def _attention(number: int) -> AttentionInfo:
    return AttentionInfo(
        name=f"attn{number}",
        source="pattern",
        nodes=tuple(f"/attn{number}/{part}" for part in ("scores", "softmax", "context")),
        heads=HEADS,
        kv_heads=HEADS,
        head_size=HEAD_SIZE,
        scale=HEAD_SIZE**-0.5,
        mask="none",
        causal=False,
        dead_rows=False,
        recognised=True,
    )


def _group(number: int) -> ProjectionGroup:
    return ProjectionGroup(
        name=f"attn{number}/qkv",
        attention=f"attn{number}",
        kind="qkv",
        nodes=(f"/attn{number}/qkv",),
        sizes=(WIDTH,) * 3,
        merged=True,
    )
