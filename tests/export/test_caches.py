"""Caches in a graph: found by what is done with them, in any file; sizes, places, opset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from attnport.errors import InputError, ModuleError, NarrowedRangeError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.caches import find_caches
from attnport.export.export_module import export_module
from attnport.export.passes import run_passes
from attnport.models.registry import resolve
from attnport.models.spec import ModelSpec

SMALL = {"d_model": 16, "num_heads": 2, "num_layers": 1}
RANGES = {"batch": (1, 2, 3), "seq": (1, 3, 5), "past": (0, 4, 6)}


def exported(spec: ModelSpec, out: Path, **options: Any) -> Bundle:
    axes = {name: axis.rule.partition("= ")[2] or RANGES[name] for name, axis in spec.axes.items()}
    sizes = {"batch": 2, "seq": 3, "past": 4, "total": 7}
    given: dict[str, Any] = {"axes": axes, "dynamic_shapes": spec.dynamic_shapes} | options
    return export_module(spec.make(), spec.make_args(sizes), out, **given)


def test_a_growing_cache_is_found_with_its_present(tmp_path: Path) -> None:
    bundle = exported(resolve("decoder-lm", {**SMALL, "vocab_size": 11}), tmp_path / "b")
    manifest = bundle.manifest
    assert [cache.model_dump() for cache in manifest.caches] == [
        {"input": "past_key_0", "output": "present_key_0", "kind": "concat", "axis": 2},
        {"input": "past_value_0", "output": "present_value_0", "kind": "concat", "axis": 2},
    ]
    assert manifest.opset == 18
    assert {spec.name: spec.role for spec in manifest.inputs} == {
        "token_ids": "token_ids", "positions": "positions", "mask": "mask",
        "past_key_0": "cache", "past_value_0": "cache",
    }  # fmt: skip
    assert [spec.name for spec in manifest.outputs] == [
        "logits", "present_key_0", "present_value_0",
    ]  # fmt: skip
    assert manifest.outputs[1].shape == ("batch", 2, "total", 8)
    assert {case.sizes["past"] for case in manifest.cases} >= {0, 1, 6}
    past = next(case for case in manifest.cases if case.sizes["past"] == 6)
    positions = bundle.load_case(past.name).inputs["positions"]
    np.testing.assert_array_equal(positions[0], 6 + np.arange(past.sizes["seq"]))


def test_a_static_cache_is_found_with_its_place(tmp_path: Path) -> None:
    bundle = exported(resolve("cached-stack-static", {**SMALL, "capacity": 9}), tmp_path / "b")
    manifest = bundle.manifest
    assert [(c.input, c.output, c.kind, c.axis) for c in manifest.caches] == [
        ("cache_key_0", "updated_key_0", "static", 2),
        ("cache_value_0", "updated_value_0", "static", 2),
    ]
    assert manifest.opset == 24
    where = next(spec for spec in manifest.inputs if spec.name == "write_at")
    assert (where.role, where.room) == ("write_at", (9, "seq"))
    for case in manifest.cases:
        drawn = bundle.load_case(case.name).inputs["write_at"]
        assert 0 <= drawn.min() <= drawn.max() + case.sizes["seq"] <= 9


def test_an_opset_without_the_operator_is_refused(tmp_path: Path) -> None:
    spec = resolve("cached-stack-static", {**SMALL, "capacity": 9})
    with pytest.raises(UsageError, match=r"opset 20 .*TensorScatter\), which begins with 24"):
        exported(spec, tmp_path / "b", opset=20)
    assert not (tmp_path / "b").exists()


def test_more_new_tokens_than_the_cache_has_are_refused(tmp_path: Path) -> None:
    spec = resolve("cached-stack-static", {**SMALL, "capacity": 4})
    with pytest.raises(NarrowedRangeError, match=r"goes up to 5, .* cache of 4: give it 1 to 4"):
        exported(spec, tmp_path / "b")


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    spec = resolve("decoder-lm", {**SMALL, "d_model": 64, "vocab_size": 2048})
    bundle = exported(spec, tmp_path / "b", max_cases=0)
    stored = sum(file.stat().st_size for file in bundle.path.glob("model.onnx*"))
    held = sum(weight.nbytes for weight in spec.make().parameters())
    table = 4 * 2048 * 64
    assert held < stored < held + table / 2


HEADS: list[int | str] = ["batch", 2, "seq", 8]


def info(
    name: str, shape: list[int | str], element: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def file_of(
    nodes: list[onnx.NodeProto], cache: list[int | str], more: tuple[str, ...]
) -> ir.Model:
    """A user's file of opset 24: new heads and caches in, the context and caches out."""
    inputs = [info(name, HEADS) for name in "qkv"] + [info(f"past_{n}", cache) for n in "kv"]
    inputs += [info(name, ["batch"], TensorProto.INT64) for name in more]
    grown: list[int | str] = ["batch", 2, "total", 8]
    now = cache if more else grown
    outputs = [info("y", HEADS), *(info(f"now_{n}", now) for n in "kv")]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return ir.serde.deserialize_model(model)


def test_the_past_of_a_users_operator_is_a_cache() -> None:
    inputs = ["q", "k", "v", "", "past_k", "past_v"]
    node = helper.make_node("Attention", inputs, ["y", "now_k", "now_v"], name="a", is_causal=1)
    model = file_of([node], ["batch", 2, "past", 8], ())
    assert not find_caches(model.graph)
    run_passes(model)
    found = [cache.record for cache in find_caches(model.graph)]
    assert [(c.input, c.output, c.kind, c.axis) for c in found] == [
        ("past_k", "now_k", "concat", 2),
        ("past_v", "now_v", "concat", 2),
    ]


def test_the_scattered_caches_beside_key_lengths_are_static() -> None:
    nodes = [
        helper.make_node("TensorScatter", [f"past_{n}", n, "at"], [f"now_{n}"], axis=2)
        for n in "kv"
    ]
    inputs = ["q", "now_k", "now_v", "", "", "", "lengths"]
    nodes.append(helper.make_node("Attention", inputs, ["y"], name="a"))
    model = file_of(nodes, ["batch", 2, 9, 8], ("at", "lengths"))
    records = {record.name: record for record in run_passes(model)}
    assert records["expand_operator"].notes == ("a: the key lengths written out",)
    caches = find_caches(model.graph)
    assert [(c.record.input, c.record.kind) for c in caches] == [
        ("past_k", "static"),
        ("past_v", "static"),
    ]
    where, room = caches[0].write_at()
    assert where is not None
    assert (where.name, room) == ("at", (9, "seq"))


class Named(nn.Module):
    """Two results with names of their own."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.output_names = names

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) -> two of (N,)."""
        return x + 1, x * 2


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "b c")])
def test_names_that_are_no_names_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ModuleError, match=r"Named.output_names is .*the graph has 2: give each"):
        export_module(
            Named(*names), (torch.ones(3),), tmp_path / "b", dynamic_shapes=(None,), axes={}
        )


def test_what_contradicts_a_cache_is_refused_before_it_runs(tmp_path: Path) -> None:
    from attnport.engines.feeds import check_feeds

    spec = resolve("decoder-lm", {**SMALL, "vocab_size": 11, "rotary": False, "max_positions": 12})
    bundle = exported(spec, tmp_path / "b", max_cases=0, inputs=spec.roles)
    batch, seq, past = 2, 3, 4
    good = {
        "token_ids": np.zeros((batch, seq), np.int64),
        "positions": np.full((batch, seq), 11),
        "mask": np.ones((batch, seq, past + seq), bool),
        "past_key_0": np.zeros((batch, 2, past, 8), np.float32),
        "past_value_0": np.zeros((batch, 2, past, 8), np.float32),
    }
    check_feeds(good, bundle.manifest.inputs, bundle.axes)
    bad = {
        r"has total 5, and total = past \+ seq: past is 4 \(past_key_0\), seq is 3": {
            "mask": good["mask"][..., :5]
        },
        "'past_value_0' has size 3 at dimension 2": {
            "past_value_0": good["past_value_0"][:, :, :3]
        },
        "'past_key_0' has size 1 at dimension 0": {"past_key_0": good["past_key_0"][:1]},
        "'past_key_0' is float16": {"past_key_0": good["past_key_0"].astype(np.float16)},
        "'positions' holds 12, .* from 0 to 11: give positions": {
            "positions": good["positions"] + 1
        },
        "'token_ids' holds -1, .* from 0 to 10: give token ids": {
            "token_ids": good["token_ids"] - 1
        },
    }
    for part, change in bad.items():
        with pytest.raises(InputError, match=part):
            check_feeds({**good, **change}, bundle.manifest.inputs, bundle.axes)


def test_a_full_cache_is_refused_before_it_runs(tmp_path: Path) -> None:
    from attnport.engines.feeds import check_feeds

    spec = resolve("cached-stack-static", {**SMALL, "capacity": 9})
    bundle = exported(spec, tmp_path / "b", max_cases=0)
    args = [arg.numpy() for arg in spec.make_args({"batch": 2, "seq": 3})]
    feeds = dict(zip([spec.name for spec in bundle.manifest.inputs], args, strict=True))
    check_feeds({**feeds, "write_at": np.array([0, 6])}, bundle.manifest.inputs, bundle.axes)
    for at, part in (
        (7, "holds 7, and 3 rows .* cache of 9: the cache is full"),
        (-1, "holds -1"),
    ):
        given = {**feeds, "write_at": np.array([0, at])}
        with pytest.raises(InputError, match=part):
            check_feeds(given, bundle.manifest.inputs, bundle.axes)
