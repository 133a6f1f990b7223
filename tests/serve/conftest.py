"""A live endpoint with a model of every dtype, shared by the tests that only ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.serve.bundles import NumpyIdentity, identity_bundle
from tests.serve.running import Running, running
from tests.validate.small_bundle import make_bundle

from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle
from attnport.export.records import Dtype
from attnport.serve.served_model import ServedModel

DTYPES: tuple[Dtype, ...] = ("float32", "float16", "int64", "int32", "uint8", "bool")


@pytest.fixture(scope="session")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small attention in float32."""
    return make_bundle(tmp_path_factory.mktemp("attention") / "small")


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Y = x in float32."""
    return identity_bundle(tmp_path_factory.mktemp("identity") / "identity", "float32")


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory, attention: Bundle) -> Iterator[Running]:
    """Models: attention, identity-DTYPE for each dtype, tokens; and two versions of one."""
    folder = tmp_path_factory.mktemp("served")
    models = [ServedModel("attention", "1", attention, open_engine(attention, "ort-cpu"))]
    for dtype in DTYPES:
        bundle = identity_bundle(folder / dtype, dtype)
        engine = open_engine(bundle, "ort-cpu", threads=1)
        models.append(ServedModel(f"identity-{dtype}", "1", bundle, engine))
    half = identity_bundle(folder / "bfloat16", "bfloat16")
    models.append(ServedModel("identity-bfloat16", "1", half, NumpyIdentity(half)))
    tokens = identity_bundle(folder / "tokens", "int64", high=100)
    models.append(ServedModel("tokens", "1", tokens, open_engine(tokens, "ort-cpu", threads=1)))
    for version in ("2", "10"):
        bundle = identity_bundle(folder / f"version{version}", "float32")
        engine = open_engine(bundle, "ort-cpu", threads=1)
        models.append(ServedModel("versions", version, bundle, engine))
    with running(models) as endpoint:
        yield endpoint
