"""Causal attentions in chunks for ONNX Runtime on the CPU: when, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from tests.export.evaluation import assert_same_numbers, normal, run_in_ort

from attnport.engines.build import build_engine
from attnport.engines.kinds import engine_kind
from attnport.engines.lowering import lower_bundle
from attnport.engines.lowering_table import causal_chunks
from attnport.engines.ort_engine import OrtEngine
from attnport.engines.plan import EnginePlan
from attnport.export.bundle import Bundle
from attnport.validate.finding import Subject
from attnport.validate.fusion import check_lowered

BundleMaker = Callable[..., Bundle]
CPU = "ort-cpu"


def with_usual_length(bundle: Bundle, opt: int) -> Bundle:
    axes = bundle.manifest.axes | {"seq": (1, opt, 8192)}
    return Bundle(bundle.path, bundle.manifest.model_copy(update={"axes": axes}))


@pytest.mark.parametrize(("opt", "chunks"), [(128, 1), (255, 1), (256, 4), (1024, 8), (4096, 8)])
def test_the_usual_length_decides(attention_bundle: BundleMaker, opt: int, chunks: int) -> None:
    assert causal_chunks(opt) == chunks
    bundle = with_usual_length(attention_bundle(dtype="float32", causal="add"), opt)
    lowered = lower_bundle(bundle, CPU)
    (attention,) = lowered.attentions
    assert attention.form == ("chunks" if chunks > 1 else "pattern")
    assert (lowered.content is None) == (chunks == 1)
    if chunks > 1:
        assert attention.reason.startswith(f"{chunks} chunks: ")


@pytest.mark.parametrize("given", [{}, {"mask": True}, {"causal": "add", "operator": True}])
def test_only_pure_causality_is_cut(
    attention_bundle: BundleMaker, given: dict[str, object]
) -> None:
    bundle = with_usual_length(attention_bundle(dtype="float32", **given), 2048)
    assert [one.form for one in lower_bundle(bundle, CPU).attentions] == ["pattern"]


def test_a_mask_is_added_and_the_numbers_stay(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32", mask=True)
    content = lower_bundle(bundle, CPU).content
    assert content is not None
    lowered = onnx.load_from_string(content)
    read_by = {name: node.op_type for node in lowered.graph.node for name in node.input}
    hides = [
        n
        for n in lowered.graph.node
        if n.op_type == "Where" and "Add" in map(read_by.get, n.output)
    ]
    assert len(hides) == 1
    mask = normal((2, 1, 5, 5)) > 0
    mask[..., 0] = True  # this graph has no guard for rows of which all is hidden
    feeds = {"x": normal((2, 5, 128)), "mask": mask}
    assert_same_numbers(onnx.load(bundle.model_path), lowered, feeds)


def test_the_numbers_stay(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle(dtype="float32", causal="add")
    long = with_usual_length(bundle, 2048)
    content = lower_bundle(long, CPU).content
    assert content is not None
    feeds = [{"x": normal((2, n, 128))} for n in (1, 3, 13)]
    model = onnx.load(bundle.model_path)
    assert_same_numbers(model, onnx.load_from_string(content), feeds)
    with OrtEngine(long, engine_kind(CPU)) as engine:
        for one in feeds:
            (expected,) = run_in_ort(onnx.load_from_string(content), one)
            assert np.array_equal(engine.run(one)["y"], expected)


def test_the_plan_names_the_graph_beside_it(attention_bundle: BundleMaker) -> None:
    bundle = with_usual_length(attention_bundle(dtype="float32", causal="add"), 2048)
    plan = build_engine(bundle, CPU)
    assert plan.path == bundle.path / "model.ort-cpu.onnx"
    assert plan.path.is_file()
    assert plan.lowering is not None
    assert plan.lowering.form == "chunks"
    assert EnginePlan.model_validate_json(plan.model_dump_json()) == plan
    # A build that cuts nothing leaves no graph of one that did.
    assert build_engine(with_usual_length(bundle, 64), CPU).path == bundle.model_path
    assert not plan.path.exists()


def test_the_report_tells_of_each_attention_in_chunks(attention_bundle: BundleMaker) -> None:
    bundle = with_usual_length(attention_bundle(dtype="float32", causal="add"), 1024)
    plan = build_engine(bundle, CPU)
    assert plan.lowering is not None
    assert plan.lowering.attentions.keys() == {"attn0"}
    (told,) = check_lowered(Subject.of(bundle, CPU), plan.lowering)
    assert (told.case, told.status, told.required) == ("attn0", "not run", False)
    assert "8 chunks: " in told.message


def test_the_report_tells_nothing_of_attentions_as_they_are(attention_bundle: BundleMaker) -> None:
    bundle = with_usual_length(attention_bundle(dtype="float32", causal="add"), 128)
    plan = build_engine(bundle, CPU)
    assert not list(check_lowered(Subject.of(bundle, CPU), plan.lowering))
