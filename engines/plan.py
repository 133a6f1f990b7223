"""What building an engine gives: the plan, and what the plan tells about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from attnport.engines.build_options import BuildOptions, Sizes
from attnport.export.records import Record

Causal = Literal["bounded", "masked", "none"]


class AttentionFusion(Record):
    """What became of one attention in one profile of the plan.

    Attributes:
        attention: Its name in the graph ("attn0").
        fused: Whether scale, mask, softmax and both products run in one kernel.
        kernel: The kernel's name in the plan ("_gemm_mha_v2_…"); None where not fused.
        causal: "bounded" where the kernel skips the keys after the query, "masked" where it
            computes and hides them, "none" where the attention is not causal.
        nodes: The ONNX nodes inside the kernel, as the builder's table lists them.
        profile: Index of the optimization profile.
        reason: Why it is not fused; empty where it is.
        note: What could not be told of a fused one; empty where all is known.
    """

    attention: str
    fused: bool
    kernel: str | None
    causal: Causal
    nodes: tuple[str, ...] = ()
    profile: int = 0
    reason: str = ""
    note: str = ""


class ProjectionFusion(Record):
    """What became of one group of projections.

    Attributes:
        group: Its name in the graph ("attn0/qkv").
        merged_in_graph: Whether the ONNX file holds one matrix for the group.
        one_gemm: Whether the plan runs it as one GEMM.
        layer: That layer's name; None where there is not one.
        profile: Index of the optimization profile.
        reason: Why not; empty where both hold.
    """

    group: str
    merged_in_graph: bool
    one_gemm: bool
    layer: str | None
    profile: int = 0
    reason: str = ""


class PlanLayer(Record):
    """A row of the builder's layer table."""

    name: str
    type: str
    tactic: str | None
    nodes: tuple[str, ...]
    profile: int = 0

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel launch, not a helper for shapes."""
        return self.type in {"kgen", "gemm", "runtime_fusion"}


class FusionReport(Record):
    """What the plan says of every attention and projection group, and how many kernels it runs.

    Attributes:
        attentions: One entry for each attention and profile.
        projection_groups: One entry for each group and profile.
        kernel_count: Kernel launches of profile 0 (the layer types kgen, gemm, runtime_fusion).
        kernel_counts: Those of every profile.
        layers: The whole table.
    """

    attentions: tuple[AttentionFusion, ...]
    projection_groups: tuple[ProjectionFusion, ...]
    kernel_count: int
    kernel_counts: tuple[int, ...] = ()
    layers: tuple[PlanLayer, ...]


class PlanLowering(Record):
    """The form in which the graph was given to the builder.

    Attributes:
        form: Which; "as-written" is `model.onnx` itself.
        reason: Why this one.
        kernel_counts: Kernels of all profiles in the plan of every form that was built; None for
            one that was not taken at all.
        refused: Of each of those, why.
        attentions: Of each attention that is not given as the graph has it: its form, and why.
        graph: The file beside the plan that holds the graph; "" for `model.onnx`. Its weights are
            those of the bundle, by their name relative to the bundle's folder.
        graph_sha256: Its hash.
    """

    form: str
    reason: str
    kernel_counts: dict[str, int | None] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    attentions: dict[str, str] = Field(default_factory=dict)
    graph: str = ""
    graph_sha256: str = ""


class EnginePlan(Record):
    """The result of `attnport.build_engine`.

    Attributes:
        kind: The engine's kind ("ort-cpu", "tensorrt-rtx", …).
        model: The bundle's name.
        bundle_path: The bundle's folder.
        bundle_hash: The hash of graph and weights that it was built from.
        dtype: The bundle's dtype.
        path: The plan, or the graph that the engine loads; None for engines made of the module.
        plan_sha256: Its hash; None where there is no file of the engine's own.
        versions: The libraries that built it.
        build_seconds: Wall time of the build.
        peak_memory_bytes: Peak resident memory of the building process; None where not measured.
        fusion: What the plan says of itself; None for kinds that have no attention kernel.
        log_path: The builder's messages; None where there are none.
        warnings: What the user should know of this build, a sentence each.
        key: The hash of everything that the plan follows from; a build with the same key takes it.
        options: What was asked of the build.
        profiles: For each optimization profile the (min, opt, max) of every axis.
        device: The device that it was built on and for; "" where the options' targets say.
        lowering: The form of the graph that it was built from; None for kinds without a choice.
        cached: Whether this plan was found, and not built just now.
    """

    kind: str
    model: str
    bundle_path: Path
    bundle_hash: str
    dtype: str
    path: Path | None
    plan_sha256: str | None = None
    versions: dict[str, str]
    build_seconds: float
    peak_memory_bytes: int | None = None
    fusion: FusionReport | None = None
    log_path: Path | None = None
    warnings: tuple[str, ...] = ()
    key: str = ""
    options: BuildOptions = BuildOptions()
    profiles: tuple[dict[str, Sizes], ...] = ()
    device: str = ""
    lowering: PlanLowering | None = None
    cached: bool = False
