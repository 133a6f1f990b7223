"""A slice of the zoo: each architecture as expected, in half precision; `make zoo` looks at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.catalogue import ARCHITECTURES, chosen

from attnport.engines.build import build_engine
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.validate.prove import prove
from attnport.validate.requirements import Requirements

# A dozen of them that differ in how attention is written, and are quick to export.
SLICE = (
    "bert",
    "llama",
    "gpt2",
    "t5-encoder",
    "vit",
    "clip-text",
    "bart-decoder",
    "nn-mha-padded",
    "nn-encoder",
    "tril-buffer",
    "mask-minus-infinity",
    "grouped-expand",
)


@pytest.mark.parametrize("name", SLICE)
def test_an_architecture_is_found_merged_fused_and_proved(name: str, tmp_path: Path) -> None:
    entry = ARCHITECTURES[name]
    bundle = _exported(entry, tmp_path)
    attentions, groups = bundle.manifest.attentions, bundle.manifest.projection_groups
    assert sum(attention.recognised for attention in attentions) == entry.attentions
    assert [group.merged for group in groups] == [True] * entry.mergeable
    plan = build_engine(bundle, "tensorrt-rtx")
    assert plan.fusion is not None
    assert sum(found.fused for found in plan.fusion.attentions) == entry.fusable
    assert sum(found.causal == "bounded" for found in plan.fusion.attentions) == entry.causal
    report = prove(bundle, ["ort-cpu"], require=Requirements(fusion=()))
    assert report.verdict == "proved", [f.message for f in report.findings if f.status == "failed"]


def _exported(entry: Architecture, folder: Path) -> Bundle:
    return export_module(
        entry.make(),
        entry.example(),
        folder / "bundle",
        dynamic_shapes=entry.dynamic_shapes,
        axes=entry.axes,
        dtype="float16",
        inputs=entry.roles,
        max_cases=4,
        name=entry.name,
    )


def test_the_zoo_is_large_and_each_expectation_is_of_one_piece() -> None:
    of_transformers = [
        entry
        for entry in chosen(())
        if not entry.uncapturable
        and entry.family not in ("torch.nn", "by hand", "stacks of 512/8", "trained")
    ]
    assert len(of_transformers) >= 40
    for entry in chosen(()):
        assert 0 <= entry.fusable <= entry.attentions
        assert 0 <= entry.mergeable <= entry.groups
        assert entry.causal <= entry.fusable
        assert entry.why


def test_families_are_named_like_architectures() -> None:
    assert {entry.family for entry in chosen(["vision", "llama"])} == {"vision", "text decoders"}
    with pytest.raises(UsageError, match="no architecture of the zoo"):
        chosen(["berta"])
