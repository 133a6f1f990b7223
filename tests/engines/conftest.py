"""Graphs and bundles small enough to be built in a test.

B batch, N tokens, D width, H heads, Dh head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.records import AttentionInfo, Dtype, Manifest, ProjectionGroup, TensorSpec

AXES = {"batch": (1, 2, 4), "seq": (1, 32, 64)}
ONNX_DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "bool": TensorProto.BOOL,
}
CORE = ("/attn0/scores", "/attn0/softmax", "/attn0/context")


class GraphWriter:
    """Collects nodes and constants of one attention, each named `/attn0/<what it is>`."""

    def __init__(self, dtype: str) -> None:
        self.dtype = numpy_dtype(dtype)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        node = helper.make_node(operator, inputs, [name], name=f"/attn0/{name}", **attributes)
        self.nodes.append(node)
        return name

    def number(self, name: str, value: object) -> str:
        array = np.asarray(value).astype(self.dtype)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, name: str, value: object) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
        return name

    def weight(self, name: str, rows: int, columns: int) -> str:
        values = np.random.default_rng(len(self.constants)).standard_normal((rows, columns))
        return self.number(name, values / np.sqrt(rows))


def write_attention(
    graph: GraphWriter,
    *,
    width: int,
    heads: int,
    merged: bool,
    causal: Literal["add", "where"] | None,
    mask: str | None,
    operator: bool,
) -> None:
    """The canonical pattern of one self-attention from "x" to "y", or the Attention operator."""
    if merged:
        packed = graph.add("MatMul", ["x", graph.weight("W_QKV", width, 3 * width)], "qkv")
        sizes = graph.integers("sizes", [width] * 3)
        parts = helper.make_node(
            "Split", [packed, sizes], ["q0", "k0", "v0"], name="/attn0/split", axis=-1
        )
        graph.nodes.append(parts)
    else:
        for letter in "qkv":
            graph.add("MatMul", ["x", graph.weight(f"W_{letter}", width, width)], f"{letter}0")
    split = graph.integers("split_heads", [0, 0, heads, width // heads])
    for letter in "qkv":
        transpose = [0, 2, 3, 1] if letter == "k" and not operator else [0, 2, 1, 3]
        graph.add("Reshape", [f"{letter}0", split], f"{letter}1")
        graph.add("Transpose", [f"{letter}1"], letter, perm=transpose)
    if operator:
        causal_flag = int(causal is not None)
        graph.add("Attention", ["q", "k", "v"], "context", is_causal=causal_flag)
    else:
        _write_softmax(graph, width // heads, causal, mask)
    graph.add("Transpose", ["context"], "context1", perm=[0, 2, 1, 3])
    graph.add("Reshape", ["context1", graph.integers("merge_heads", [0, 0, width])], "context2")
    graph.add("MatMul", ["context2", graph.weight("W_O", width, width)], "y")


def _write_softmax(graph: GraphWriter, size: int, causal: str | None, mask: str | None) -> None:
    graph.add("Mul", ["q", graph.number("scale_value", size**-0.5)], "scaled")
    scores = graph.add("MatMul", ["scaled", "k"], "scores")
    hidden = graph.number("hidden", -np.inf)
    if causal:
        _write_visible(graph)
    if causal == "add":
        graph.add("Where", ["visible", graph.number("shown", 0.0), hidden], "bias")
        scores = graph.add("Add", [scores, "bias"], "causal")
    elif causal == "where":
        scores = graph.add("Where", ["visible", scores, hidden], "causal")
    if mask:
        scores = graph.add("Where", [mask, scores, hidden], "masked")
    graph.add("MatMul", [graph.add("Softmax", [scores], "softmax", axis=-1), "v"], "context")


def _write_visible(graph: GraphWriter) -> None:
    """Query i sees key j where i >= j."""
    length = graph.add("Shape", ["x"], "length", start=1, end=2)
    zero, one = graph.integers("zero", 0), graph.integers("one", 1)
    end = graph.add("Squeeze", [length], "end")
    positions = graph.add("Range", [zero, end, one], "positions")
    rows = graph.add("Unsqueeze", [positions, graph.integers("last", [1])], "rows")
    columns = graph.add("Unsqueeze", [positions, graph.integers("first", [0])], "columns")
    graph.add("GreaterOrEqual", [rows, columns], "visible")


def write_bundle(
    folder: Path,
    model: onnx.ModelProto,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    *,
    dtype: Dtype = "float16",
    axes: Mapping[str, tuple[int, int, int]] = AXES,
    attentions: tuple[AttentionInfo, ...] = (),
    groups: tuple[ProjectionGroup, ...] = (),
) -> Bundle:
    """A bundle without cases, such as the exporter writes it."""
    folder.mkdir()
    onnx.save(model, folder / MODEL)
    digest = file_sha256(folder / MODEL)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="tiny",
        source="tests",
        dtype=dtype,
        form="pattern",
        opset=model.opset_import[0].version,
        axes=dict(axes),
        inputs=inputs,
        outputs=outputs,
        graph_sha256=digest,
        weights_sha256=digest,
        files={MODEL: digest},
        versions={},
        passes=(),
        attentions=attentions,
        projection_groups=groups,
        cases=(),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    return Bundle.load(folder)


def model_of(
    graph: GraphWriter, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], opset: int
) -> onnx.ModelProto:
    def infos(specs: tuple[TensorSpec, ...]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(spec.name, ONNX_DTYPES[spec.dtype], spec.shape)
            for spec in specs
        ]

    made = helper.make_graph(graph.nodes, "tiny", infos(inputs), infos(outputs), graph.constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


BundleMaker = Callable[..., Bundle]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is remembered from other tests, nor in the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ATTNPORT_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def attention_bundle(tmp_path: Path) -> BundleMaker:
    """Makes a bundle of one self-attention."""

    def make(
        *,
        dtype: Dtype = "float16",
        width: int = 128,
        heads: int = 2,
        merged: bool = True,
        causal: Literal["add", "where"] | None = None,
        mask: bool = False,
        operator: bool = False,
        batch: int | str = "batch",
        seq: int | str = "seq",
        extra_outputs: tuple[TensorSpec, ...] = (),
    ) -> Bundle:
        graph = GraphWriter(dtype)
        write_attention(
            graph,
            width=width,
            heads=heads,
            merged=merged,
            causal=causal,
            mask="mask" if mask else None,
            operator=operator,
        )
        inputs: tuple[TensorSpec, ...] = (
            TensorSpec(name="x", dtype=dtype, shape=(batch, seq, width)),
        )
        if mask:
            shape = (batch, 1, seq, seq)
            inputs += (TensorSpec(name="mask", dtype="bool", shape=shape, role="mask"),)
        outputs = (TensorSpec(name="y", dtype=dtype, shape=(batch, seq, width)), *extra_outputs)
        attention = AttentionInfo(
            name="attn0",
            source="operator" if operator else "pattern",
            nodes=("/attn0/context",) if operator else CORE,
            heads=heads,
            kv_heads=heads,
            head_size=width // heads,
            scale=(width // heads) ** -0.5,
            mask="bool" if mask else "none",
            causal=causal is not None and not mask,
            dead_rows=mask,
            recognised=True,
        )
        group = ProjectionGroup(
            name="attn0/qkv",
            attention="attn0",
            kind="qkv",
            nodes=("/attn0/qkv",) if merged else ("/attn0/q0", "/attn0/k0", "/attn0/v0"),
            sizes=(width,) * 3,
            merged=merged,
            reason="" if merged else "there are three matrices",
        )
        return write_bundle(
            tmp_path / "bundle",
            model_of(graph, inputs, outputs, 23 if operator else 18),
            inputs,
            outputs,
            dtype=dtype,
            axes={name: AXES[name] for name in AXES if name in (batch, seq)},
            attentions=(attention,),
            groups=(group,),
        )

    return make
