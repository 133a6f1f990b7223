"""Decoding through an endpoint that keeps nothing: caches go in and come out with every request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.decoding.by_hand import DH, HKV, Kind, V, make_bundle, ratio
from tests.engines.decoding.sequences import logits_by_steps
from tests.serve.running import Running, running, wait_until
from tests.serve.test_triton_repository import parsed

from attnport.engines.decoding.greedy import generate
from attnport.engines.decoding.open import carried_session, open_decoding
from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle
from attnport.serve.oip.http_transport import HttpTransport
from attnport.serve.oip_engine import OipEngine
from attnport.serve.open_models import Source
from attnport.serve.repository.config_from_bundle import RepositoryOptions
from attnport.serve.repository.write import write_repository
from attnport.serve.served_model import ServedModel

KINDS: tuple[Kind, ...] = ("concat", "static")
IDS = np.random.default_rng(1).integers(0, V, (3, 11))


@pytest.fixture(scope="module", params=KINDS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("served") / "lm", request.param)


@pytest.fixture
def served(bundle: Bundle) -> Iterator[Running]:
    model = ServedModel("lm", "1", bundle, open_engine(bundle, "ort-cpu", threads=1))
    model.unproved = True  # written by hand, without cases
    with running([model], ready=False) as endpoint:
        model.ready = True
        wait_until(lambda: endpoint.send("GET", "/v2/health/ready").status == 200)
        yield endpoint


@pytest.mark.parametrize("binary", [True, False])
def test_steps_through_the_endpoint(bundle: Bundle, served: Running, binary: bool) -> None:
    transport = HttpTransport(f"http://{served.address}")
    engine = OipEngine(bundle, transport, model="lm", binary=binary)
    with carried_session(bundle, engine) as session:
        assert ratio(logits_by_steps(session, IDS, (2, 5, 3), "left", steps=3), IDS) <= 1
        # Nothing is kept there: keys and values travel both ways.
        rows = (8 + 9) if session.layout.kind == "concat" else 2 * 32
        assert session.copied.caches == 2 * 3 * HKV * DH * 4 * rows
    transport.close()


def test_tokens_are_those_of_the_engine(bundle: Bundle, served: Running) -> None:
    prompts = [[1, 2, 3], [30]]
    transport = HttpTransport(f"http://{served.address}")
    with carried_session(bundle, OipEngine(bundle, transport, model="lm", binary=True)) as far:
        tokens = generate(far, prompts, 8).tokens
    transport.close()
    with open_decoding(bundle, "ort-cpu", threads=1) as near:
        assert generate(near, prompts, 8).tokens == tokens


def test_caches_of_another_length_are_refused(bundle: Bundle, served: Running) -> None:
    shapes = {"batch": 1, "seq": 1, "past": 3, "total": 4, "capacity": 8}
    content: dict[str, Any] = {"inputs": []}
    kinds = {"int64": "INT64", "bool": "BOOL", "float32": "FP32"}
    for number, spec in enumerate(bundle.manifest.inputs):
        shape = [dim if isinstance(dim, int) else shapes[dim] for dim in spec.shape]
        if number == len(bundle.manifest.inputs) - 1:
            shape[2] += 1
        content["inputs"].append(
            {"name": spec.name, "datatype": kinds[spec.dtype], "shape": shape,
             "data": [False if spec.dtype == "bool" else 0] * int(np.prod(shape))}
        )  # fmt: skip
    status, answer = served.infer("lm", content)
    assert status == 400
    assert bundle.manifest.inputs[-1].name in answer["error"]


def test_triton_repository_lists_caches_as_any_other_tensor(
    bundle: Bundle, tmp_path: Path
) -> None:
    (folder,) = write_repository(
        [Source(bundle.path)], tmp_path / "repository", RepositoryOptions()
    )
    config = parsed((folder / "config.pbtxt").read_text("utf-8"))
    inputs = {tensor.name: list(tensor.dims) for tensor in config.input}
    outputs = {tensor.name: list(tensor.dims) for tensor in config.output}
    caches = bundle.manifest.caches
    assert {cache.input for cache in caches} <= set(inputs)
    assert {cache.output for cache in caches} <= set(outputs)
    # write_at has the batch alone, so Triton cannot leave it out of the shapes.
    batched = bundle.manifest.caches[0].kind == "concat"
    assert config.max_batch_size == (4 if batched else 0)
    assert inputs[caches[0].input] == ([HKV, -1, DH] if batched else [-1, HKV, -1, DH])
    assert not config.HasField("sequence_batching")
