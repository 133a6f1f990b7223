"""Bundles written by hand that the tests of this folder share; nobody writes to them."""

from __future__ import annotations

import pytest
from tests.engines.decoding.by_hand import Kind, make_bundle

from attnport.export.bundle import Bundle


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Bundle]:
    """One of each kind, in float32."""
    folder = tmp_path_factory.mktemp("by-hand")
    kinds: tuple[Kind, ...] = ("concat", "static")
    return {kind: make_bundle(folder / kind, kind) for kind in kinds}
