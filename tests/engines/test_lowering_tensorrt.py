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
from attnport.export import onnx_file
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")

BundleMaker = Callable[..., Bundle]
RTX, WIDTH, HEADS = "tensorrt-rtx", 64, 4
LOWERED = "model.tensorrt-rtx.onnx"


def exported(module: torch.nn.Module, folder: Path) -> Bundle:
    torch.manual_seed(0)
    return export_module(
        module,
        (torch.randn(2, 4, WIDTH),),
        folder,
        dynamic_shapes=({0: "batch", 1: "seq"},),
        axes={"batch": (1, 2, 8), "seq": (1, 32, 64)},
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "EXTERNAL_BYTES", 1 << 10)  # so that small weights stand beside
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
        (situation(separable=1), "separate"),
        (situation(separable=1, refits=True), "as-written"),
        (situation(narrowed=1), "sequence-first"),
        (situation(narrowed=1, ways=4, transpositions=4), "batch-first"),
        (situation(narrowed=1, refits=True), "as-written"),
    ],
)
def test_the_table(at: GraphSituation, form: str) -> None:
    assert choose_graph_form(at).form == form


class WideScores(torch.nn.Module):
    """Queries and keys are multiplied in float32, as GPT-Neo does it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.parts[:3]
        )
        weights = (q.float() @ k.float().mT).softmax(-1).to(v.dtype)
        output: torch.Tensor = self.parts[3]((weights @ v).transpose(1, 2).flatten(2))
        return output


def test_scores_that_the_source_widens_are_fused(tmp_path: Path) -> None:
    bundle = exported(WideScores(WIDTH, HEADS), tmp_path / "bundle")
    plan = build_engine(bundle, RTX)
    assert lowering_of(plan).form != "as-written"
    assert plan.fusion is not None
    assert [attention.fused for attention in plan.fusion.attentions] == [True]
    written = build_engine(
        bundle, RTX, out=tmp_path / "written", options=BuildOptions(form="as-written")
    )
    assert written.fusion is not None
    assert [attention.fused for attention in written.fusion.attentions] == [False]
    kept = onnx.load(bundle.model_path, load_external_data=False)
    assert sum(n.op_type == "Cast" for n in kept.graph.node) >= 3  # model.onnx stays wide


def test_scores_are_not_narrowed_where_no_kernel_takes_them(tmp_path: Path) -> None:
    """One head and a batch of one: TensorRT prefers separate kernels, which would lose scores."""
    torch.manual_seed(0)
    bundle = export_module(
        WideScores(16, 1), (torch.randn(1, 4, 16),), tmp_path / "bundle",
        dynamic_shapes=({1: "seq"},), axes={"seq": (1, 8, 16)}, dtype="float16", max_cases=1,
    )  # fmt: skip
    lowering = lowering_of(build_engine(bundle, RTX))
    assert lowering.form == "as-written"
    (said,) = lowering.refused.values()
    assert "outside of an attention kernel" in said
    assert said in lowering.reason
    every = lowering_of(
        build_engine(bundle, RTX, out=tmp_path / "auto", options=BuildOptions(form="auto"))
    )
    assert every.form == "as-written"
    assert every.refused.keys() == {f for f, n in every.kernel_counts.items() if n is None}
    assert all(f"{form} none ({why})" in every.reason for form, why in every.refused.items())


class NormedQueries(torch.nn.Module):
    """Grouped queries, and a norm of each head of queries and keys before the rotation's place."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        size = width // heads
        self.counts = (heads, shared, shared)
        self.parts = torch.nn.ModuleList(
            torch.nn.Linear(width, count * size, bias=False) for count in self.counts
        )
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(size) for _ in range(2))
        self.back = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (count, -1))
            for part, count in zip(self.parts, self.counts, strict=True)
        )
        q, k = (norm(x).transpose(1, 2) for norm, x in zip(self.norms, (q, k), strict=True))
        context = torch.nn.functional.scaled_dot_product_attention(
            q, k, v.transpose(1, 2), enable_gqa=True
        )
        output: torch.Tensor = self.back(context.transpose(1, 2).flatten(2))
        return output


def test_columns_that_norms_read_are_separate_and_still_one_gemm(tmp_path: Path) -> None:
    bundle = exported(NormedQueries(WIDTH, HEADS, 2), tmp_path / "bundle")
    (group,) = bundle.manifest.projection_groups
    assert group.merged
    plan = build_engine(bundle, RTX)
    assert lowering_of(plan).form == "separate"
    written = build_engine(
        bundle, RTX, out=tmp_path / "written", options=BuildOptions(form="as-written")
    )
    assert kernels(plan) <= kernels(written)
