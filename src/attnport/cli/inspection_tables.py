"""Tables of what a graph holds, and of what a plan made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.cli.screen import say, short_kernel, show_table

if TYPE_CHECKING:
    from attnport.engines.plan import EnginePlan, FusionReport
    from attnport.export.records import AttentionInfo, ProjectionGroup


def show_inspection(
    attentions: Sequence[AttentionInfo], groups: Sequence[ProjectionGroup]
) -> None:
    """Prints the attentions and projection groups of an ONNX file."""
    if not attentions:
        say("no attention was found in the graph")
        return
    show_table(
        ("attention", "heads", "scale", "mask", "causal", "written as", "recognised"),
        [
            (
                a.name,
                _heads(a),
                "not constant" if a.scale is None else f"{a.scale:.6g}",
                a.mask,
                _yes(a.causal),
                a.source,
                _yes(a.recognised, a.reason),
            )
            for a in attentions
        ],
    )
    show_table(
        ("projections", "widths", "nodes", "merged"),
        [
            (g.name, " + ".join(map(str, g.sizes)), "\n".join(g.nodes), _yes(g.merged, g.reason))
            for g in groups
        ],
    )


def show_plan(plan: EnginePlan) -> None:
    """Prints what building gave, and what the plan says of each attention."""
    versions = ", ".join(f"{name} {version}" for name, version in plan.versions.items())
    where = plan.path or "nothing to write, it runs the module"
    made = "found, not built again" if plan.cached else f"{plan.build_seconds:.1f} s"
    say(f"{plan.kind}: {where}  ({versions}, {made})")
    for number, sizes in enumerate(plan.profiles if len(plan.profiles) > 1 else ()):
        ranges = ", ".join(f"{name} {':'.join(map(str, size))}" for name, size in sizes.items())
        say(f"profile {number}: {ranges}")
    if plan.fusion is None:
        say(f"{plan.kind} has no plan that tells which kernels it runs")
        return
    show_fusion(plan.fusion)


def show_fusion(fusion: FusionReport) -> None:
    """Prints which kernel each attention became, or why none."""
    profiles = {entry.profile for entry in fusion.attentions}
    show_table(
        ("attention", "fused into", "causal", "nodes in the kernel"),
        [
            (
                f"{a.attention} (profile {a.profile})" if len(profiles) > 1 else a.attention,
                short_kernel(str(a.kernel)) if a.fused else f"not fused: {a.reason}",
                "\n".join(filter(None, (a.causal, a.note))),
                "\n".join(a.nodes),
            )
            for a in fusion.attentions
        ],
    )
    show_table(
        ("projections", "merged in the file", "one GEMM in the plan"),
        [
            (
                f"{g.group} (profile {g.profile})" if len(profiles) > 1 else g.group,
                _yes(g.merged_in_graph),
                g.layer or _yes(g.one_gemm, g.reason),
            )
            for g in fusion.projection_groups
        ],
    )
    counts = fusion.kernel_counts or (fusion.kernel_count,)
    say(f"kernels: {', '.join(map(str, counts))}")


def _heads(info: AttentionInfo) -> str:
    if info.heads is None or info.head_size is None:
        return "not said"
    shared = "" if info.kv_heads in (None, info.heads) else f", {info.kv_heads} for keys"
    return f"{info.heads} x {info.head_size}{shared}"


def _yes(holds: bool, reason: str = "") -> str:
    if holds:
        return "yes"
    return f"no: {reason}" if reason else "no"
