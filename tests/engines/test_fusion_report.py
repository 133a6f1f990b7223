"""What is claimed of a plan, and that it takes two witnesses."""

from __future__ import annotations

import pytest

from attnport.engines.fusion import fusion_report
from attnport.engines.graph_facts import GraphFacts
from attnport.engines.plan import AttentionFusion, PlanLayer, ProjectionFusion
from attnport.export.records import AttentionInfo, ProjectionGroup

KERNEL = "_gemm_mha_v2_0x0b32993f692db562e793da9c96553661"
NODES = ("/attn0/scores", "/attn0/mask", "/attn0/softmax", "/attn0/context")
FACTS = GraphFacts(
    op_types=dict(zip(NODES, ("MatMul", "Add", "Softmax", "MatMul"), strict=True)),
)


def attention(**changes: object) -> AttentionInfo:
    info = AttentionInfo(
        name="attn0",
        source="pattern",
        nodes=NODES,
        heads=4,
        kv_heads=4,
        head_size=32,
        scale=32**-0.5,
        mask="none",
        causal=True,
        dead_rows=False,
        recognised=True,
    )
    return info.model_copy(update=changes)


def kernel_text(bound: str, tactic: str = KERNEL) -> bytes:
    """As it stands in a plan: metadata with the name first, then the kernel's text."""
    family = tactic.partition("_0x")[0]
    return (
        f"function={{ name={family} }}\0{tactic}\0weights\0"
        f"struct {family}_params_t : public bert::Fused_multihead_attention_params_v2 {{\n"
        "  __device__ __inline__ int32_t col_left_bound(\n        int32_t row) const\n"
        "  {\n    return 0;\n  }\n"
        "  __device__ __inline__ int32_t col_right_bound(\n        int32_t row) const\n"
        f"  {{\n    return {bound};\n  }}\n}};\n"
        f'extern "C" __global__ void __launch_bounds__(128) {tactic}(\n  Params p) {{ row; }}\0'
    ).encode()


def layer(name: str, kind: str = "kgen", *nodes: str, tactic: str | None = None) -> PlanLayer:
    return PlanLayer(name=name, type=kind, tactic=tactic, nodes=nodes)


FUSED = layer("_gemm_mha_v2_myl0_7", "kgen", *reversed(NODES), tactic=KERNEL)
SPLIT = [
    layer("/attn0/scores_myl0_1", "gemm", "/attn0/scores"),
    layer("__myl_MaxrSubExpSumDiv_myl0_2", "kgen", "/attn0/softmax", "/attn0/mask"),
    layer("/attn0/context_myl0_3", "gemm", "/attn0/context"),
]


def judge(
    layers: list[PlanLayer],
    plan: bytes = b"",
    *,
    dtype: str = "float16",
    facts: GraphFacts | None = FACTS,
    **changes: object,
) -> AttentionFusion:
    report = fusion_report([attention(**changes)], [], dtype, layers, plan, facts)
    (found,) = report.attentions
    return found


@pytest.mark.parametrize(
    ("bound", "causal"),
    [
        ("row + ((int32_t) 0)", "bounded"),
        ("min(((int32_t) shape2),row + ((int32_t) 0))", "bounded"),
        ("((int32_t) shape2)", "masked"),
        ("((int32_t) 127)", "masked"),
        ("rows + ((int32_t) arrow)", "masked"),
    ],
)
def test_causality_is_read_from_the_right_bound(bound: str, causal: str) -> None:
    found = judge([FUSED], kernel_text(bound))
    assert (found.fused, found.kernel, found.causal, found.note) == (True, KERNEL, causal, "")


def test_each_kernel_has_its_own_text() -> None:
    other = KERNEL.replace("0b3", "fff")
    plan = kernel_text("((int32_t) shape2)", other) + kernel_text("row + ((int32_t) 0)")
    assert judge([FUSED], plan).causal == "bounded"
    layers = [FUSED.model_copy(update={"tactic": other})]
    assert judge(layers, plan).causal == "masked"


def test_a_kernel_without_text_is_not_called_bounded() -> None:
    found = judge([FUSED], KERNEL.encode())
    assert (found.fused, found.causal) == (True, "masked")
    assert "no text of this kernel" in found.note


def test_an_attention_that_is_not_causal_has_no_causality() -> None:
    assert judge([FUSED], kernel_text("row"), causal=False).causal == "none"


def test_a_kernel_that_the_plan_does_not_hold_is_not_claimed() -> None:
    found = judge([FUSED], b"another plan")
    assert not found.fused
    assert "the two disagree" in found.reason


def test_a_kernel_that_covers_a_part_is_not_the_attention() -> None:
    partial = FUSED.model_copy(update={"nodes": ("/attn0/scores", "/attn0/context")})
    found = judge([partial], kernel_text("row"))
    assert not found.fused
    assert found.reason == "TensorRT split it into: _gemm_mha_v2_myl0_7 (kgen)"


def test_a_layer_that_is_only_called_attention_is_not_a_kernel() -> None:
    decomposed = FUSED.model_copy(update={"name": "__myl_Attention_fmha_myl0_7"})
    assert not judge([decomposed], kernel_text("row")).fused


def test_nodes_without_names_are_never_claimed() -> None:
    nodes = ("/attn0/scores", "", "/attn0/context")
    unnamed = FUSED.model_copy(update={"nodes": nodes[::2]})
    assert not judge([unnamed], kernel_text("row"), nodes=nodes).fused


def test_without_operators_the_ends_stand_for_all() -> None:
    ends = FUSED.model_copy(update={"nodes": ("/attn0/scores", "/attn0/context")})
    assert judge([ends], kernel_text("row"), facts=None).fused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float32"}, "no fused attention kernel for float32"),
        ({"head_size": 8}, "its head size is 8"),
        ({"head_size": 257}, "its head size is 257"),
        ({"facts": GraphFacts(op_types={"/attn0/mask": "Tanh"})}, "softcap"),
        (
            {
                "facts": GraphFacts(
                    op_types=FACTS.op_types, output_nodes=frozenset({"/attn0/softmax"})
                )
            },
            "softmax weights are an output",
        ),
        (
            {
                "heads": 1,
                "facts": GraphFacts(
                    op_types=FACTS.op_types, unit_batch_nodes=frozenset({"/attn0/scores"})
                ),
            },
            "batch times heads is a constant 1",
        ),
    ],
)
def test_known_reasons(changes: dict[str, object], reason: str) -> None:
    found = judge(SPLIT, **changes)  # type: ignore[arg-type]  # one table for all keywords
    assert reason in found.reason
    assert "it runs as" in found.reason


def test_unknown_reason_names_the_layers() -> None:
    found = judge(SPLIT)
    assert found.reason == (
        "TensorRT split it into: /attn0/scores_myl0_1 (gemm), "
        "__myl_MaxrSubExpSumDiv_myl0_2 (kgen), /attn0/context_myl0_3 (gemm)"
    )


def test_an_attention_that_the_table_does_not_name() -> None:
    assert judge([layer("a_myl0_0", "gemm", "other")]).reason == (
        "none of its nodes is named in the builder's table"
    )


def test_every_profile_is_judged() -> None:
    second = [part.model_copy(update={"profile": 1}) for part in SPLIT]
    report = fusion_report(
        [attention()], [], "float16", [FUSED, *second], kernel_text("row"), FACTS
    )
    assert [(found.profile, found.fused) for found in report.attentions] == [(0, True), (1, False)]
    assert report.kernel_count == 1


def judge_group(*layers: PlanLayer, merged: bool = False) -> ProjectionFusion:
    group = ProjectionGroup(
        name="attn0/qkv",
        attention="attn0",
        kind="qkv",
        nodes=("/q", "/k", "/v"),
        sizes=(8, 8, 8),
        merged=merged,
    )
    (found,) = fusion_report([], [group], "float16", list(layers), b"").projection_groups
    return found


def test_projections_in_one_gemm() -> None:
    found = judge_group(layer("/v+/k+/q_myl0_2", "gemm", "/v", "/k", "/q"), merged=True)
    assert (found.one_gemm, found.layer, found.reason) == (True, "/v+/k+/q_myl0_2", "")


def test_projections_in_one_gemm_that_the_graph_keeps_apart() -> None:
    found = judge_group(layer("/v+/k+/q_myl0_2", "gemm", "/v", "/k", "/q"))
    assert (found.merged_in_graph, found.one_gemm) == (False, True)
    assert found.reason == "the graph holds a matrix for each projection"


def test_projections_in_several_gemms() -> None:
    found = judge_group(
        layer("/q_myl0_2", "gemm", "/q"), layer("/kv_myl0_3", "gemm", "/k", "/v"), merged=True
    )
    assert (found.one_gemm, found.layer) == (False, None)
    assert found.reason == "the plan runs 2 GEMMs for it: /q_myl0_2, /kv_myl0_3"


def test_projections_that_no_gemm_names() -> None:
    found = judge_group(layer("/q_myl0_2", "kgen", "/q", "/k", "/v"), merged=True)
    assert found.reason == "no GEMM of the plan names these nodes"
