"""How many kernels TensorRT for RTX makes of decoding, in two profiles: real builds, no GPU needed.

fp16, four blocks of D=512, H=8, a bool mask with its dead rows guarded. Profile 0 is the prefill, 1
is exactly one query token. The counts are what was shown to be reachable with TensorRT for RTX
1.7.1: 22 and 18 with a growing cache, 22 and 30 with grouped queries, 31 and 22 with a static one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models.registry import resolve

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")

PROFILES = ({"seq": (1, 128, 512)}, {"seq": (1, 1, 1)})
MOST: dict[str, tuple[str, dict[str, int], tuple[int, int]]] = {
    "growing": ("cached-stack", {}, (22, 18)),
    "growing, grouped": ("cached-stack", {"kv_heads": 2}, (22, 30)),
    "static": ("cached-stack-static", {}, (30, 22)),
}


def exported(name: str, sizes: dict[str, int], folder: Path) -> Bundle:
    spec = resolve(name, sizes)
    return export_module(
        spec.make(),
        spec.make_args(spec.opt_sizes()),
        folder,
        dynamic_shapes=spec.dynamic_shapes,
        axes=spec.axes,
        inputs=spec.roles,
        dtype="float16",
        max_cases=0,
    )


@pytest.mark.parametrize("form", MOST)
def test_four_blocks_in_both_profiles(form: str, tmp_path: Path) -> None:
    name, sizes, most = MOST[form]
    bundle = exported(name, sizes, tmp_path / "b")
    plan = build_engine(bundle, "tensorrt-rtx", options=BuildOptions(profiles=PROFILES))
    fusion = plan.fusion
    assert fusion is not None
    found = {(one.attention, one.profile): one for one in fusion.attentions}
    assert len(found) == 8
    for (_, profile), one in found.items():
        assert one.fused, one.reason
        assert str(one.kernel).startswith(("_gemm_mha", "_gemv_mha")[profile])
    assert fusion.kernel_counts[0] <= most[0]
    assert fusion.kernel_counts[1] <= most[1]
