"""The Attention operator with a cache, key lengths, windows and three axes, against NumPy.

The oracle below is the operator's specification (Attention-23 to -25) in float64, and shares no
code with the passes or with onnx's own evaluator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.export.evaluation import assert_close, normal, references, run_in_ort
from tests.export.nets import op_types, passed

from attnport.export.records import Form

HEADS, SIZE = 4, 8
ELEMENTS = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
    "bool": TensorProto.BOOL, "int64": TensorProto.INT64,
}  # fmt: skip
# Batch, queries, keys that are new, past.
SIZES = ((2, 5, 5, 3), (3, 4, 9, 1), (1, 1, 1, 7))
FORMS: tuple[Form, ...] = ("pattern", "attention")
Arrays = dict[str, np.ndarray]
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Kind:
    """A use of the operator: its inputs in order, and what else it is given."""

    inputs: Mapping[str, Shape | None]
    attributes: Mapping[str, int | float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    opset: int = 23
    present: bool = False

    def model(self, dtype: str = "float32") -> onnx.ModelProto:
        values = [
            helper.make_tensor_value_info(name, ELEMENTS[self.dtypes.get(name, dtype)], shape)
            for name, shape in self.inputs.items()
            if shape is not None
        ]
        rank = len(self.inputs["q"] or ())
        shapes: dict[str, list[str]] = {"y": ["y0", "y1", "y2", "y3"][:rank]}
        if self.present:
            shapes |= {name: [f"{name}{i}" for i in range(4)] for name in ("keys", "values")}
        outputs = [
            helper.make_tensor_value_info(name, ELEMENTS[dtype], shape)
            for name, shape in shapes.items()
        ]
        operands = [name if shape is not None else "" for name, shape in self.inputs.items()]
        given: dict[str, Any] = dict(self.attributes)
        node = helper.make_node("Attention", operands, list(shapes), name="mha", **given)
        graph = helper.make_graph([node], "net", values, outputs)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def feeds(self, b: int, n: int, t: int, p: int, dtype: str = "float32") -> Arrays:
        sizes = {"b": b, "n": n, "t": t, "p": p, "total": t + (p if self.has_past else 0)}
        sizes["short"] = max(1, sizes["total"] - 1)
        rng = np.random.default_rng(b + n)
        made: Arrays = {}
        for index, (name, shape) in enumerate(self.inputs.items()):
            if shape is None:
                continue
            concrete = [sizes[dim] if isinstance(dim, str) else dim for dim in shape]
            kind = self.dtypes.get(name, dtype)
            if kind == "bool":
                made[name] = rng.random(concrete) < 0.6
            elif kind == "int64":
                made[name] = rng.integers(1, sizes["total"] + 1, concrete)
            else:
                made[name] = normal(concrete, kind, seed=index)
        return made

    @property
    def has_past(self) -> bool:
        return self.inputs.get("past_k") is not None


def as_heads(array: np.ndarray, heads: int) -> np.ndarray:
    if array.ndim == 4:
        return array
    b, n, width = array.shape
    return array.reshape(b, n, heads, width // heads).transpose(0, 2, 1, 3)


def oracle(kind: Kind, feeds: Arrays) -> list[np.ndarray]:
    """What the specification says, in float64."""
    given = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    shared = int(kind.attributes.get("kv_num_heads", 0))
    q = as_heads(given["q"], int(kind.attributes.get("q_num_heads", 0)))
    k, v = (as_heads(given[name], shared) for name in "kv")
    past = 0
    if kind.has_past:
        past = given["past_k"].shape[2]
        k, v = (np.concatenate((given[f"past_{n}"], x), 2) for n, x in (("k", k), ("v", v)))
    groups = q.shape[1] // k.shape[1]
    scale = kind.attributes.get("scale", 1 / math.sqrt(q.shape[-1]))
    scores = q @ np.repeat(k, groups, 1).swapaxes(-1, -2) * scale
    scores = np.where(seen(kind, given, scores.shape, past), scores, -np.inf)
    mask = given.get("mask")
    if mask is not None:
        missing = scores.shape[-1] - mask.shape[-1] if mask.shape[-1] > 1 else 0
        bias = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask
        pad = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        scores = scores + np.pad(bias, pad, constant_values=-np.inf)
    largest = scores.max(-1, keepdims=True)
    raised = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = raised.sum(-1, keepdims=True)
    context = raised / np.where(total == 0, 1, total) @ np.repeat(v, groups, 1)
    if given["q"].ndim == 3:
        context = context.transpose(0, 2, 1, 3).reshape(*given["q"].shape[:2], -1)
    return [context, k, v] if kind.present else [context]


def seen(kind: Kind, given: Arrays, shape: tuple[int, ...], past: int) -> np.ndarray:
    """(B,1,N,T): what causality, key lengths and windows leave visible."""
    b, _, n, t = shape
    lengths = given.get("lengths")
    offset = np.full(b, past) if lengths is None else lengths - n
    distance = np.arange(t)[None, None] - np.arange(n)[None, :, None] - offset[:, None, None]
    visible = np.ones((b, n, t), bool)
    if kind.attributes.get("is_causal"):
        visible &= distance <= 0
    left, right = (kind.attributes.get(f"{s}_window_size", -1) for s in ("left", "right"))
    if left >= 0:
        visible &= distance >= -left
    if right >= 0:
        visible &= distance <= right
    if lengths is not None:
        visible &= np.arange(t) < lengths[:, None, None]
    return visible[:, None]


def four(kv: int = HEADS) -> dict[str, Shape | None]:
    shared: Shape = ("b", kv, "t", SIZE)
    return {"q": ("b", HEADS, "n", SIZE), "k": shared, "v": shared, "mask": None}


def three(kv: int = HEADS) -> dict[str, Shape | None]:
    shared: Shape = ("b", "t", kv * SIZE)
    return {"q": ("b", "n", HEADS * SIZE), "k": shared, "v": shared, "mask": None}


def past(kv: int = HEADS) -> dict[str, Shape | None]:
    return {"past_k": ("b", kv, "p", SIZE), "past_v": ("b", kv, "p", SIZE)}


NO_PAST: dict[str, Shape | None] = {"past_k": None, "past_v": None}
LENGTHS: dict[str, Shape | None] = NO_PAST | {"lengths": ("b",)}
INT, BOOL = {"lengths": "int64"}, {"mask": "bool"}
CAUSAL = {"is_causal": 1}
GROUPED = {"q_num_heads": HEADS, "kv_num_heads": 2}

KINDS: dict[str, Kind] = {
    "past": Kind(four() | past(), present=True),
    "past, causal": Kind(four() | past(), CAUSAL, present=True),
    "past without present": Kind(four() | past(), CAUSAL),
    "present without past": Kind(four(), CAUSAL, present=True),
    "past, scale": Kind(four() | past(), {"scale": 0.25}, present=True),
    "past, grouped": Kind(four(2) | past(2), CAUSAL, present=True),
    "past, three axes": Kind(three(2) | past(2), CAUSAL | GROUPED, present=True),
    "three axes": Kind(three(), {"q_num_heads": HEADS, "kv_num_heads": HEADS}),
    "three axes, grouped, causal": Kind(three(2), CAUSAL | GROUPED),
    "three axes, present": Kind(three(2), GROUPED, present=True),
    "past, bool mask": Kind(
        four() | {"mask": ("b", 1, "n", "total")} | past(), CAUSAL, BOOL, present=True
    ),
    "past, additive mask": Kind(
        four() | {"mask": (HEADS, "n", "total")} | past(), CAUSAL, present=True
    ),
    "mask of one query": Kind(four() | {"mask": ("b", 1, 1, "t")}, {}, BOOL),
    "mask that ends early": Kind(four() | {"mask": ("b", 1, "n", "short")}, {}, BOOL),
    "additive mask that ends early": Kind(four() | {"mask": ("n", "short")}),
    "lengths": Kind(four() | LENGTHS, {}, INT, opset=24),
    "lengths, causal": Kind(four() | LENGTHS, CAUSAL, INT, opset=24),
    "lengths, grouped, three axes": Kind(three(2) | LENGTHS, CAUSAL | GROUPED, INT, opset=24),
    "lengths, bool mask": Kind(
        four() | {"mask": ("b", 1, "n", "t")} | LENGTHS, CAUSAL, INT | BOOL, opset=24
    ),
    "lengths, additive mask": Kind(
        four() | {"mask": ("b", 1, "n", "t")} | LENGTHS, {}, INT, opset=24
    ),
    "window": Kind(four(), {"left_window_size": 2, "right_window_size": 1}, opset=25),
    "window, causal, past": Kind(
        four() | past(), CAUSAL | {"left_window_size": 2}, opset=25, present=True
    ),
    "window, lengths": Kind(
        four() | LENGTHS, CAUSAL | {"left_window_size": 2}, INT, opset=25
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_numbers(name: str) -> None:
    kind = KINDS[name]
    before = kind.model()
    written = [passed(before, form)[0] for form in FORMS]
    for sizes in SIZES:
        feeds = kind.feeds(*sizes)
        known, truths = references(before, feeds), oracle(kind, feeds)
        for after in written:
            for result, truth, (_, reference, _) in zip(
                run_in_ort(after, feeds), truths, known, strict=True
            ):
                assert_close(result, truth, reference)


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_left_of_the_operator(name: str) -> None:
    after, _ = passed(KINDS[name].model())
    assert "Attention" not in op_types(after)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["past, causal", "lengths, causal", "three axes, grouped, causal"]
)
def test_a_second_run_changes_nothing(name: str, form: Form) -> None:
    once, _ = passed(KINDS[name].model(), form)
    twice, done = passed(once, form)
    assert done.changed == 0
    assert op_types(twice) == op_types(once)


def scores_used() -> onnx.ModelProto:
    """A past, and the fourth output, which no other operator gives."""
    model = KINDS["past"].model()
    model.graph.node[0].output.append("scores")
    shape = ["s0", "s1", "s2", "s3"]
    model.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape))
    return model


def without_shapes() -> onnx.ModelProto:
    model = KINDS["past"].model()
    rows = helper.make_node("Mystery", ["q"], ["unknown"], domain="our.operators")
    model.graph.node[0].input[0] = "unknown"
    model.graph.node.insert(0, rows)
    model.opset_import.append(helper.make_opsetid("our.operators", 1))
    return model


@pytest.mark.parametrize(
    ("make", "reason"), [(scores_used, "its scores are used"), (without_shapes, "give shapes")]
)
def test_what_cannot_be_written_out_is_left_and_said(
    make: Callable[[], onnx.ModelProto], reason: str
) -> None:
    before = make()
    after, done = passed(before)
    assert op_types(after) == op_types(before)
    (record,) = [record for record in done.records if record.name == "expand_operator"]
    assert reason in record.notes[0]
    assert record.notes[0].startswith("mha: left as it is")


@pytest.mark.parametrize(
    "name", ["past, three axes", "present without past", "lengths, causal", "window, lengths"]
)
def test_tensorrt_builds_it(name: str) -> None:
    """Its parser refuses the operator with a second output or with key lengths."""
    trt = pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
    after, _ = passed(KINDS[name].model("float16"))
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(after.SerializeToString()), parser.get_error(0).desc()
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    limits = {"b": (1, 2, 4), "n": (1, 5, 8), "t": (1, 5, 8), "p": (1, 3, 8)}
    for value in after.graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        bounds = [limits[d] if isinstance(d, str) else (d,) * 3 for d in dims]
        profile.set_shape(value.name, *zip(*bounds, strict=True))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
