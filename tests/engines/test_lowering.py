"""Graphs for ONNX Runtime on CUDA: the same numbers from one node for each attention.

ONNX Runtime on the CPU runs both forms, so all but the speed is tested here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from attnport.engines import lowering
from attnport.engines.kinds import KINDS
from attnport.engines.lowered_graph import LoweredGraph
from attnport.engines.lowering import lower_bundle
from attnport.engines.lowering_table import ORT_CUDA, TABLES, Situation, choose_form
from attnport.engines.ort_binding import Binding, BindingPool
from attnport.engines.ort_placement import require_placed, trt_options
from attnport.engines.ort_profile import RanNode, _judge, attentions_that_ran
from attnport.engines.ort_session import create_session
from attnport.errors import EngineUnavailableError
from attnport.export.bundle import Bundle
from attnport.export.records import AttentionInfo

onnxruntime = pytest.importorskip("onnxruntime", reason="runs both forms in ONNX Runtime")
BundleMaker = Callable[..., Bundle]
CPU = "CPUExecutionProvider"
NEW, OLD = (1, 31), (1, 24)


def info(**changes: object) -> AttentionInfo:
    base = AttentionInfo(
        name="attn0", source="pattern", nodes=("a", "b"), heads=4, kv_heads=4, head_size=32,
        scale=1.0, mask="none", causal=False, dead_rows=False, recognised=True,
    )  # fmt: skip
    return base.model_copy(update=changes)


@pytest.mark.parametrize(
    ("situation", "form"),
    [
        (Situation(info(), "float16", True, True, NEW), "multi-head-attention"),
        (Situation(info(), "float32", True, True, NEW), "multi-head-attention"),
        (Situation(info(), "float32", True, False, OLD), "multi-head-attention"),
        (Situation(info(), "float16", False, True, NEW), "attention"),
        (Situation(info(), "float16", False, True, OLD), "pattern"),
        (Situation(info(), "float16", False, False, NEW), "pattern"),
        (Situation(info(kv_heads=2), "float16", True, True, NEW), "attention"),
        (Situation(info(), "bfloat16", True, True, NEW), "pattern"),
        (Situation(info(recognised=False), "float16", True, True, NEW), "pattern"),
    ],
)
def test_the_table(situation: Situation, form: str) -> None:
    rule = choose_form("ort-cuda", situation)
    assert rule.form == form
    assert rule.reason


def test_every_kind_with_a_provider_has_a_table_that_ends() -> None:
    assert set(TABLES) == {kind.name for kind in KINDS.values() if kind.provider}
    last = Situation(info(recognised=False), "int8", False, False, ())
    assert all(table[-1].applies(last) for table in TABLES.values())
    assert len({rule.reason for rule in ORT_CUDA}) == len(ORT_CUDA)


@pytest.mark.parametrize("kind", ["ort-cpu", "ort-tensorrt"])
def test_the_others_run_model_onnx_itself(attention_bundle: BundleMaker, kind: str) -> None:
    lowered = lower_bundle(attention_bundle(), kind)
    assert lowered.content is None
    assert [one.form for one in lowered.attentions] == ["pattern"]


def feeds_of(bundle: Bundle, seq: int, batch: int = 2) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seq)
    feeds: dict[str, np.ndarray] = {
        "x": draws.standard_normal((batch, seq, 128)).astype(np.float32)
    }
    if len(bundle.manifest.inputs) > 1:
        mask = draws.random((batch, 1, seq, seq)) < 0.6
        mask[..., 0, :] = False  # a query with every key hidden
        mask[..., 1:, 0] = True
        feeds["mask"] = mask
    return feeds


def outputs(graph: Path | bytes, folder: Path, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(create_session(graph, folder, CPU).run(None, dict(feeds))[0])


def near(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Both sum 128 products in fp32, in their own order, four products deep."""
    bound = 4 * 128 * np.finfo(np.float32).eps * np.abs(wanted).max()
    return bool(np.abs(found - wanted).max() <= bound)


@pytest.fixture(params=["multi-head-attention", "attention"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either form, chosen by the table; the second by taking the rows away."""
    if request.param == "attention":
        monkeypatch.setattr("attnport.engines.lower_to_mha.rows_of", lambda value: None)
    return str(request.param)


@pytest.mark.parametrize("options", [{}, {"causal": "add"}, {"merged": False}])
def test_it_computes_the_same(
    attention_bundle: BundleMaker, form: str, options: dict[str, Any]
) -> None:
    bundle = attention_bundle(dtype="float32", **options)
    lowered = lower_bundle(bundle, "ort-cuda")
    assert [one.form for one in lowered.attentions] == [form]
    assert lowered.content is not None
    for seq in (1, 2, 9, 64):
        feeds = feeds_of(bundle, seq)
        wanted = outputs(bundle.model_path, bundle.path, feeds)
        assert near(outputs(lowered.content, bundle.path, feeds), wanted)


def test_it_computes_the_same_with_a_mask_and_a_dead_row(
    attention_bundle: BundleMaker, form: str
) -> None:
    bundle = attention_bundle(dtype="float32", mask=True)
    lowered = lower_bundle(bundle, "ort-cuda")
    assert [one.form for one in lowered.attentions] == [form]
    assert lowered.content is not None
    for seq in (2, 9):
        feeds = feeds_of(bundle, seq)
        found = outputs(lowered.content, bundle.path, feeds)
        wanted = outputs(bundle.model_path, bundle.path, feeds)
        np.testing.assert_array_equal(found[:, 0], 0)  # the bundle of these tests has no guard
        assert near(found[:, 1:], wanted[:, 1:])


def test_four_transpositions_fall_away(attention_bundle: BundleMaker) -> None:
    lowered = lower_bundle(attention_bundle(causal="add"), "ort-cuda")
    assert lowered.content is not None
    model = onnx.load_from_string(lowered.content)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("MultiHeadAttention") == 1
    assert not {"Transpose", "Softmax", "Attention"}.intersection(operators)
    used = {name for node in model.graph.node for name in node.input}
    assert {constant.name for constant in model.graph.initializer} <= used


def test_weights_beside_the_file_are_shared(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32")
    model = onnx.load(bundle.model_path)
    onnx.save(
        model,
        bundle.model_path,
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=1024,
    )
    lowered = lower_bundle(bundle, "ort-cuda")
    assert lowered.content is not None
    assert len(lowered.content) < 20_000
    feeds = feeds_of(bundle, 5)
    wanted = outputs(bundle.model_path, bundle.path, feeds)
    assert near(outputs(lowered.content, bundle.path, feeds), wanted)


def test_an_unrecognised_attention_stays_and_says_why(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "_ort_version", lambda: OLD)
    monkeypatch.setattr("attnport.engines.lower_to_mha.rows_of", lambda value: None)
    lowered = lower_bundle(attention_bundle(), "ort-cuda")
    (only,) = lowered.attentions
    assert (lowered.content, only.form) == (None, "pattern")
    assert "before 1.25 the operator runs unfused" in only.reason


def test_what_no_operator_can_say_stays_a_pattern(attention_bundle: BundleMaker) -> None:
    """Hidden scores of -10000 are not hidden: where all keys are, they all count the same."""
    bundle = attention_bundle(dtype="float32", mask=True)
    model = onnx.load(bundle.model_path)
    for number in model.graph.initializer:
        array = onnx.numpy_helper.to_array(number)
        if array.size == 1 and np.isneginf(array).any():
            finite = np.full_like(array, -1e4)
            number.CopyFrom(onnx.numpy_helper.from_array(finite, number.name))
    onnx.save(model, bundle.model_path)
    lowered = lower_bundle(bundle, "ort-cuda")
    assert lowered.content is None
    (attention,) = lowered.attentions
    assert attention.form == "pattern"
    assert "sets hidden scores to a number" in attention.reason


def test_the_profile_names_what_ran(attention_bundle: BundleMaker, form: str) -> None:
    bundle = attention_bundle(dtype="float32", causal="add")
    lowered, feeds = lower_bundle(bundle, "ort-cuda"), feeds_of(bundle, 5)
    (ran,) = attentions_that_ran(bundle, KINDS["ort-cpu"], lowered, feeds)
    operator = {"multi-head-attention": "MultiHeadAttention", "attention": "Attention"}[form]
    assert ran.fused
    assert (operator, CPU) in {(node.operator, node.provider) for node in ran.ran}
    # A provider that was not the one asked for did not do what was asked.
    plain = LoweredGraph(None, lower_bundle(bundle, "ort-cpu").attentions)
    (ran,) = attentions_that_ran(bundle, KINDS["ort-cpu"], plain, feeds)
    assert not ran.fused
    assert "it was given as a pattern" in ran.reason


def test_a_node_on_another_provider_is_not_fused(attention_bundle: BundleMaker) -> None:
    lowered = lower_bundle(attention_bundle(), "ort-cuda")
    (one,) = lowered.attentions
    nodes = [RanNode(node=one.node, operator="MultiHeadAttention", provider=CPU)]
    assert _judge(one, nodes, KINDS["ort-cuda"]).reason == f"{one.node} ran on {CPU}"
    assert "ran no node of the name" in _judge(one, [], KINDS["ort-cuda"]).reason


class Placed:
    """A session that says where its nodes are: none here has two providers."""

    def __init__(self, *nodes: tuple[str, str]) -> None:
        self.nodes = nodes

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [
            SimpleNamespace(
                ep_name=provider,
                get_nodes=lambda op=op: [SimpleNamespace(name=f"/{op}", op_type=op, domain="")],
            )
            for op, provider in self.nodes
        ]


def test_a_node_that_computes_elsewhere_is_a_fallback() -> None:
    cuda = KINDS["ort-cuda"]
    require_placed(Placed(("MatMul", cuda.provider), ("Shape", CPU), ("Range", CPU)), cuda)
    with pytest.raises(
        EngineUnavailableError, match=r"gave 1 nodes .* \(Softmax '/Softmax' on CPU"
    ):
        require_placed(Placed(("MatMul", cuda.provider), ("Softmax", CPU)), cuda)
    with pytest.raises(EngineUnavailableError, match="MatMul"):
        require_placed(Placed(("MatMul", cuda.provider)), KINDS["ort-tensorrt"])


def test_tensorrts_provider_gets_the_ranges(attention_bundle: BundleMaker) -> None:
    options = trt_options(attention_bundle(mask=True))
    assert options["trt_profile_min_shapes"] == "x:1x1x128,mask:1x1x1x1"
    assert options["trt_profile_max_shapes"] == "x:4x64x128,mask:4x1x64x64"
    assert options["trt_fp16_enable"] == "1"


def test_static_inputs_need_no_ranges(attention_bundle: BundleMaker) -> None:
    assert trt_options(attention_bundle(batch=2, seq=4)) == {"trt_fp16_enable": "1"}


def test_bound_buffers_give_what_a_plain_run_gives(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32", causal="add")
    session = create_session(bundle.model_path, None, CPU)
    binding = Binding(session, bundle.manifest.inputs, bundle.manifest.outputs, "cpu")
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for seq in (3, 3, 3, 7, 1, 3):
        feeds = feeds_of(bundle, seq)
        feeds["x"] += len(kept)
        found = binding.run(feeds)["y"]
        np.testing.assert_array_equal(found, session.run(None, feeds)[0])
        kept.append((found, found.copy()))
    for array, copy in kept:
        np.testing.assert_array_equal(array, copy)


def test_buffers_stay_while_shapes_do(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32")
    session = create_session(bundle.model_path, None, CPU)
    binding = Binding(session, bundle.manifest.inputs, bundle.manifest.outputs, "cpu")
    feeds = feeds_of(bundle, 3)
    where = []
    for _ in range(3):
        binding.run(feeds)
        (output,) = binding._binding.get_outputs()
        where.append((binding._values["x"].data_ptr(), output.data_ptr()))
    assert len(set(where)) == 1
    assert feeds["x"].ctypes.data != where[0][0]


def test_threads_get_bindings_of_their_own(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32")
    session = create_session(bundle.model_path, None, CPU, threads=1)
    pool = BindingPool(session, bundle.manifest.inputs, bundle.manifest.outputs, "cpu")

    def same(seed: int) -> bool:
        feeds = feeds_of(bundle, 1 + seed % 9)
        return np.array_equal(pool.run(feeds)["y"], session.run(None, feeds)[0])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(same, range(40)))
