"""Small bundles to split, and the verdict on what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.shard.lockstep import Lockstep
from tests.shard.modules import HEADS, WIDTH
from torch import nn

from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.export.shard.shard_bundle import shard_bundle
from attnport.validate.parity import check_parity

AXES = {"batch": (1, 2, 3), "seq": (1, 5, 9)}
ROWS = {0: "batch", 1: "seq"}


def make_bundle(
    module: nn.Module, out: Path, *, masked: bool = False, dtype: str = "float32", cases: int = 20
) -> Bundle:
    """Exports a module that takes x (B,N,D), and a mask (B,H,N,N) where it is masked."""
    torch.manual_seed(0)
    args: tuple[Any, ...] = (torch.randn(2, 5, WIDTH),)
    shapes: tuple[dict[int, str], ...] = (ROWS,)
    if masked:
        args = (*args, torch.ones(2, HEADS, 5, 5, dtype=torch.bool))
        shapes = (ROWS, {0: "batch", 2: "seq", 3: "seq"})
    return export_module(
        module, args, out, dynamic_shapes=shapes, axes=AXES, dtype=dtype, max_cases=cases
    )


def prove_split(bundle: Bundle, ranks: int, out: Path) -> Lockstep:
    """Splits a bundle, runs all its cases over the ranks, and requires that they are right."""
    shard_bundle(bundle, ranks, out)
    engine = Lockstep(out)
    statuses = []
    for record in bundle.manifest.cases:
        found = check_parity(engine, bundle, record.name)
        for finding in found:
            assert finding.status != "failed", (record.name, finding.message)
        statuses += [finding.status for finding in found]
    assert "passed" in statuses
    return engine
