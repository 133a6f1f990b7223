"""Small language models with caches, exported for real, that tests of decoding share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from tests.validate.mutants.engine_faults import Good
from tests.validate.mutants.subjects import SUBJECTS, exported, graph_of, module_of
from tests.validate.mutants.trial import runs_of
from torch import nn

from attnport.axes import Axis, AxisSum, axes_by_name
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models.cached_inputs import cache_inputs
from attnport.models.decoder_lm import CachedBlock, DecoderLM


@dataclass(frozen=True)
class Decoder:
    """A bundle with caches and one small case; decoding's own case is made from the module."""

    name: str
    bundle: Bundle

    @classmethod
    def export(cls, name: str, folder: Path) -> Decoder:
        return cls(name, exported(SUBJECTS[name], "float32", folder, max_cases=1))

    @cached_property
    def module(self) -> nn.Module:
        return module_of(SUBJECTS[self.name], 1)

    @cached_property
    def good(self) -> Good:
        run = runs_of(self.bundle, graph_of(self.bundle.path, self.name))
        return Good(self.bundle, run, run)


def export_lm(module: DecoderLM, folder: Path, *, past: int = 80) -> Bundle:
    """A language model with growing caches, as a bundle of one case."""
    heads = cast(CachedBlock, module.blocks[0]).attention
    names = cache_inputs(len(module.blocks), static=False)
    axes = axes_by_name(
        [Axis("batch", 1, 2, 20), Axis("seq", 1, 4, 24), Axis("past", 0, 4, past),
         AxisSum("total", ("past", "seq"))]
    )  # fmt: skip
    ids = torch.zeros(2, 4, dtype=torch.int64)
    mask = torch.ones(2, 4, 8, dtype=torch.bool)
    cache = torch.zeros(2, heads.kv_heads, 4, heads.head_size)
    rows = {0: "batch", 1: "seq"}
    shapes = (rows, rows, {**rows, 2: "total"}, *({0: "batch", 2: "past"} for _ in names))
    return export_module(
        module, (ids, ids.clone(), mask, *(cache.clone() for _ in names)), folder, dynamic_shapes=shapes,
        axes=axes, max_cases=1,
    )  # fmt: skip
