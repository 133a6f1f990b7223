"""Small language models with caches, exported for real, that tests of decoding share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.validate.mutants.engine_faults import Good
from tests.validate.mutants.subjects import SUBJECTS, exported, graph_of, module_of
from tests.validate.mutants.trial import runs_of
from torch import nn

from attnport.export.bundle import Bundle


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
