"""The form in which TensorRT is given a graph: by rule, by name, and by counting kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from tests.export.modules import Separate, Stack, Torch, sdpa

from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.lowering_table import GraphSituation, choose_graph_form
from attnport.engines.plan import EnginePlan, PlanLowering
from attnport.engines.plan_file import load_plan
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")

BundleMaker = Callable[..., Bundle]
RTX, WIDTH, HEADS = "tensorrt-rtx", 512, 8
LOWERED = "model.tensorrt-rtx.onnx"


def exported(module: torch.nn.Module, folder: Path) -> Bundle:
    torch.manual_seed(0)
    return export_module(
        module,
        (torch.randn(2, 4, WIDTH),),
        folder,
        dynamic_shapes=({0: "batch", 1: "seq"},),
        axes={"batch": (1, 2, 8), "seq": (1, 128, 512)},
        dtype="float16",
        case_sizes={"batch": 2, "seq": 4},
        max_cases=1,
    )


class OnlyRows(torch.nn.Module):
    """A stack of blocks without a mask."""

    def __init__(self, stack: torch.nn.Module) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.stack(x)
        return output


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Four pre-LN blocks without feed-forward."""
    stack = OnlyRows(Stack(lambda: Separate(WIDTH, HEADS, sdpa), WIDTH, 4))
    return exported(stack, tmp_path_factory.mktemp("blocks") / "bundle")


def lowering_of(plan: EnginePlan) -> PlanLowering:
    assert plan.lowering is not None
    return plan.lowering


def kernels(plan: EnginePlan) -> int:
    assert plan.fusion is not None
    assert all(attention.fused for attention in plan.fusion.attentions)
    assert all(group.one_gemm for group in plan.fusion.projection_groups)
    return plan.fusion.kernel_count


def test_rows_are_turned_where_that_pays(blocks: Bundle, tmp_path: Path) -> None:
    plan = build_engine(blocks, RTX, out=tmp_path)
    lowering = lowering_of(plan)
    assert lowering.form == "sequence-first"
    assert "ways into and out of heads" in lowering.reason
    assert plan.fusion is not None
    assert len(plan.fusion.attentions) == 4
    assert kernels(plan) <= 17
    assert json.loads((tmp_path / "model.tensorrt-rtx.plan.json").read_text("utf-8"))["lowering"]
    assert lowering_of(load_plan(tmp_path / "model.tensorrt-rtx.plan")) == lowering
    lowered = onnx.load(tmp_path / LOWERED, load_external_data=False)
    kept = [c for c in lowered.graph.initializer if c.data_location == onnx.TensorProto.EXTERNAL]
    places = {entry.value for c in kept for entry in c.external_data if entry.key == "location"}
    assert places == {"model.onnx.data"}
    assert not (tmp_path / "model.onnx.data").exists()


def test_a_plan_is_found_only_with_its_graph(blocks: Bundle, tmp_path: Path) -> None:
    build_engine(blocks, RTX, out=tmp_path)
    assert build_engine(blocks, RTX, out=tmp_path).cached
    (tmp_path / LOWERED).write_bytes(b"something else")
    assert not build_engine(blocks, RTX, out=tmp_path).cached
    # Another form is another plan, and leaves no graph of the one before.
    written = build_engine(blocks, RTX, out=tmp_path, options=BuildOptions(form="as-written"))
    assert not written.cached
    assert lowering_of(written).form == "as-written"
    assert not (tmp_path / LOWERED).exists()
    assert kernels(written) <= 19


def test_auto_keeps_the_fewest_kernels(attention_bundle: BundleMaker) -> None:
    plan = build_engine(attention_bundle(), RTX, options=BuildOptions(form="auto"))
    lowering = lowering_of(plan)
    counts = {form: n for form, n in lowering.kernel_counts.items() if n is not None}
    assert {"as-written", "sequence-first"} <= counts.keys()
    assert counts[lowering.form] == min(counts.values()) == kernels(plan)
    assert all(f"{form} {count}" in lowering.reason for form, count in counts.items())


def test_transpositions_of_the_source_fall_away(tmp_path: Path) -> None:
    module = OnlyRows(Torch(WIDTH, HEADS, sdpa))
    plan = build_engine(exported(module, tmp_path / "bundle"), RTX)
    assert lowering_of(plan).form == "batch-first"
    assert kernels(plan) <= 5


def test_a_bare_attention_stays_as_it_is(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    assert lowering_of(build_engine(bundle, RTX)).form == "as-written"
    assert not (bundle.path / LOWERED).exists()


@pytest.mark.parametrize("option", ["refittable", "weight_stripped"])
def test_weights_are_replaced_in_the_written_form(option: str) -> None:
    with pytest.raises(UsageError, match="leave the form out, or give as-written"):
        BuildOptions.checked(form="sequence-first", **{option: True})


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UsageError, match="'upside-down'"):
        BuildOptions.checked(form="upside-down")


def situation(**changed: object) -> GraphSituation:
    given = {
        "refits": False, "ways": 16, "transpositions": 2, "exposed": False, "undone": 0,
    }  # fmt: skip
    return GraphSituation(**(given | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "form"),
    [
        (situation(), "sequence-first"),
        (situation(refits=True), "as-written"),
        (situation(exposed=True), "as-written"),
        (situation(exposed=True, undone=2), "batch-first"),
        (situation(ways=4, transpositions=4), "as-written"),
    ],
)
def test_the_table(at: GraphSituation, form: str) -> None:
    assert choose_graph_form(at).form == form
