"""Bundles that the tests of this room share; nobody writes to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.export.nets import AXES, WIDTH

from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models import MultiHeadSelfAttention


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """One self-attention with two cases, in float32."""
    torch.manual_seed(0)
    return export_module(
        MultiHeadSelfAttention(WIDTH, 2, bias=True),
        (torch.randn(2, 5, WIDTH),),
        tmp_path_factory.mktemp("exported") / "attention",
        dynamic_shapes=({0: "batch", 1: "seq"},),
        axes=AXES,
        max_cases=2,
    )


@pytest.fixture
def bundle_folder(exported: Bundle, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(exported.path, tmp_path / "bundle"))
