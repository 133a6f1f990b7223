"""Bundles that the tests of splitting share; nobody writes to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.shard.making import make_bundle
from tests.shard.modules import Block

from attnport.export.bundle import Bundle


@pytest.fixture(scope="session")
def block(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A masked block of attention and feed-forward, in float32."""
    return make_bundle(Block(), tmp_path_factory.mktemp("block") / "block", masked=True)


@pytest.fixture(scope="session")
def half_block(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same in float16."""
    folder = tmp_path_factory.mktemp("block") / "half"
    return make_bundle(Block(), folder, masked=True, dtype="float16")


@pytest.fixture(scope="session")
def block_in_two(block: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The block on two ranks."""
    from attnport.export.shard.shard_bundle import shard_bundle

    out = tmp_path_factory.mktemp("split") / "two"
    shard_bundle(block, 2, out)
    return out


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
