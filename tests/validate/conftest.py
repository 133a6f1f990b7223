"""Bundles that the tests of this room share; nobody writes to them."""

from __future__ import annotations

import pytest
from tests.validate.small_bundle import make_bundle

from attnport.export.bundle import Bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """In float32."""
    return make_bundle(tmp_path_factory.mktemp("fp32") / "small", "float32")


@pytest.fixture(scope="session")
def half_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """In float16."""
    return make_bundle(tmp_path_factory.mktemp("fp16") / "small", "float16")
