"""A decoder written by hand, as a graph and in numpy: one block, grouped-query, both kinds of cache.

    h = E[ids] + P[positions];  q, k, v = h·Wq, h·Wk, h·Wv;  keys = cache with k, values likewise
    y = (h + softmax(q·keysᵀ/√Dh where mask)·values · Wo) · Eᵀ

Letters: B batch, N new tokens, T all, M capacity, D width, H heads, Hkv key/value heads, Dh head
size, V vocabulary.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from attnport.export.arrays import numpy_dtype
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.records import (
    CacheRecord,
    Dtype,
    Manifest,
    OutputErrors,
    OutputReference,
    TensorSpec,
)
from attnport.validate.bound import bound

H, HKV, DH, V, POSITIONS = 4, 2, 8, 40, 32
D = H * DH
AXES = {"batch": (1, 2, 4), "seq": (1, 4, 12), "past": (0, 4, 20), "total": (1, 8, 32)}
CAPACITY = {"capacity": (4, 16, 32)}

Kind = Literal["concat", "static"]


def weights(seed: int = 0, dtype: str = "float32") -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    sizes = {"E": (V, D), "P": (POSITIONS, D), "Wq": (D, D), "Wk": (D, HKV * DH),
             "Wv": (D, HKV * DH), "Wo": (D, D)}  # fmt: skip
    kind = numpy_dtype(dtype)
    return {
        name: (draws.standard_normal(size) * 1.5 / math.sqrt(size[-1])).astype(kind)
        for name, size in sizes.items()
    }


def full_pass(w: dict[str, np.ndarray], ids: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """Logits of whole sequences without padding, computed in a dtype: (B,S) -> (B,S,V)."""
    w = {name: array.astype(dtype) for name, array in w.items()}
    b, s = ids.shape
    h = w["E"][ids] + w["P"][np.arange(s)]  # (B,S,D)
    q = (h @ w["Wq"]).reshape(b, s, H, DH).transpose(0, 2, 1, 3)
    k, v = ((h @ w[n]).reshape(b, s, HKV, DH).transpose(0, 2, 1, 3) for n in ("Wk", "Wv"))
    k, v = (np.repeat(one, H // HKV, axis=1) for one in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * w["E"].dtype.type(1 / math.sqrt(DH))
    scores = np.where(np.tril(np.ones((s, s), bool)), scores, scores.dtype.type(-np.inf))
    probabilities = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    context = (probabilities @ v).transpose(0, 2, 1, 3).reshape(b, s, D)
    logits: np.ndarray = (h + context @ w["Wo"]) @ w["E"].T
    return logits


def ratio(found: np.ndarray, ids: np.ndarray) -> float:
    """The largest error of logits as a part of the parity bound; NaN stands for not asked.

    Args:
        found: (B,S,V).
        ids: The sequences, (B,S).
    """
    w = weights()
    truth = full_pass(w, ids)
    error = np.abs(full_pass(w, ids, "float32") - truth)
    known = OutputReference(
        eager=OutputErrors(max=float(error.max()), mean=float(error.mean())),
        sdpa=None,
        perturbed=None,
        rms=float(np.sqrt(np.mean(truth**2))),
        max_abs=float(np.abs(truth).max()),
    )
    asked = np.isfinite(found)
    assert asked.any()
    return float(np.abs(found - truth)[asked].max() / bound(known, "float32").max)


def graph(w: dict[str, np.ndarray], kind: Kind, *, second_reader: bool = False) -> onnx.ModelProto:
    """The same as an ONNX file; a second reader of a static cache keeps it from one buffer."""
    nodes = _nodes(kind)
    if second_reader:
        before = "past" if kind == "concat" else "cache"
        nodes.append(helper.make_node("Shape", [f"{before}_key_0"], ["size"], "/attn0/size"))
    element = helper.np_dtype_to_tensor_dtype(w["E"].dtype)
    specs_in, specs_out = _specs(kind, str(w["E"].dtype))
    outputs = [_value(s, element) for s in specs_out]
    if second_reader:
        outputs.append(helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [4]))
    made = helper.make_graph(
        nodes,
        "by-hand",
        [_value(s, element) for s in specs_in],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in _constants(w).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.checker.check_model(model)
    return model


def _constants(w: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    float_type = w["E"].dtype
    return {
        **w,
        "ET": np.ascontiguousarray(w["E"].T),
        "scale": np.asarray(1 / math.sqrt(DH), float_type),
        "hide": np.asarray(-np.inf, float_type),
        "heads": np.asarray([0, 0, H, DH], np.int64),
        "kv_heads": np.asarray([0, 0, HKV, DH], np.int64),
        "join": np.asarray([0, 0, D], np.int64),
        "one": np.asarray([1], np.int64),
        "repeat": np.repeat(np.arange(HKV), H // HKV),
    }


def _nodes(kind: Kind) -> list[onnx.NodeProto]:
    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(
            helper.make_node(op, inputs.split(), [output], f"/attn0/{output}", **attributes)
        )

    node("Gather", "E token_ids", "words")
    node("Gather", "P positions", "places")
    node("Add", "words places", "h")
    for name, shape in (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads")):
        node("MatMul", f"h W{name}", f"{name}_flat")
        node("Reshape", f"{name}_flat {shape}", f"{name}_apart")
        node("Transpose", f"{name}_apart", name, perm=[0, 2, 1, 3])
    after = "present" if kind == "concat" else "updated"
    for name, what in (("k", "key"), ("v", "value")):
        if kind == "concat":
            node("Concat", f"past_{what}_0 {name}", f"present_{what}_0", axis=2)
        else:
            node("TensorScatter", f"cache_{what}_0 {name} write_at", f"updated_{what}_0",
                 axis=2, mode="linear")  # fmt: skip
        node("Gather", f"{after}_{what}_0 repeat", f"all_{what}", axis=1)
    node("Transpose", "all_key", "kt", perm=[0, 1, 3, 2])
    node("MatMul", "q kt", "products")
    node("Mul", "products scale", "scores")
    node("Unsqueeze", "mask one", "mask4")
    node("Where", "mask4 scores hide", "masked")
    node("Softmax", "masked", "softmax", axis=-1)
    node("MatMul", "softmax all_value", "context")
    node("Transpose", "context", "back", perm=[0, 2, 1, 3])
    node("Reshape", "back join", "rows")
    node("MatMul", "rows Wo", "attended")
    node("Add", "h attended", "sum")
    node("MatMul", "sum ET", "logits")
    return nodes


def make_bundle(
    folder: Path, kind: Kind, *, dtype: Dtype = "float32", second_reader: bool = False
) -> Bundle:
    """Writes the bundle, without cases, and opens it as a user would."""
    folder.mkdir()
    onnx.save(graph(weights(dtype=dtype), kind, second_reader=second_reader), folder / MODEL)
    specs_in, specs_out = _specs(kind, dtype)
    names = [(s.name, o.name) for s, o in zip(specs_in[-2:], specs_out[1:], strict=True)]
    axes = {"batch": AXES["batch"], "seq": AXES["seq"]}
    axes |= CAPACITY if kind == "static" else {n: AXES[n] for n in ("past", "total")}
    if second_reader:
        specs_out += (TensorSpec(name="size", dtype="int64", shape=(4,)),)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="by-hand",
        source="",
        dtype=dtype,
        form="pattern",
        opset=24,
        axes=axes,
        derived_axes={"total": ("past", "seq")} if kind == "concat" else {},
        inputs=specs_in,
        outputs=specs_out,
        caches=tuple(CacheRecord(input=i, output=o, kind=kind, axis=2) for i, o in names),
        graph_sha256=file_sha256(folder / MODEL),
        weights_sha256="",
        files={MODEL: file_sha256(folder / MODEL)},
        versions={},
        passes=(),
        attentions=(),
        projection_groups=(),
        cases=(),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    return Bundle.load(folder)


def _specs(kind: Kind, dtype: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    keys = "total" if kind == "concat" else "capacity"
    before, after = ("past", "present") if kind == "concat" else ("cache", "updated")
    held = "past" if kind == "concat" else "capacity"
    floats: Dtype = "float16" if dtype == "float16" else "float32"
    ins = [
        TensorSpec(
            name="token_ids", dtype="int64", shape=("batch", "seq"), role="token_ids", high=V
        ),
        TensorSpec(
            name="positions",
            dtype="int64",
            shape=("batch", "seq"),
            role="positions",
            high=POSITIONS,
        ),
        TensorSpec(name="mask", dtype="bool", shape=("batch", "seq", keys), role="mask"),
    ]
    if kind == "static":
        ins.append(TensorSpec(name="write_at", dtype="int64", shape=("batch",), role="write_at"))
    for what in ("key", "value"):
        ins.append(TensorSpec(name=f"{before}_{what}_0", dtype=floats,
                              shape=("batch", HKV, held, DH), role="cache"))  # fmt: skip
    outs = [TensorSpec(name="logits", dtype=floats, shape=("batch", "seq", V))]
    for what in ("key", "value"):
        outs.append(TensorSpec(name=f"{after}_{what}_0", dtype=floats,
                               shape=("batch", HKV, keys, DH)))  # fmt: skip
    return tuple(ins), tuple(outs)


def _value(spec: TensorSpec, element: int) -> onnx.ValueInfoProto:
    kinds = {"int64": onnx.TensorProto.INT64, "bool": onnx.TensorProto.BOOL}
    return helper.make_tensor_value_info(
        spec.name, kinds.get(spec.dtype, element), list(spec.shape)
    )
