"""Ready only when the bundle's own cases come out right through the endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.serve.bundles import identity_bundle
from tests.serve.running import Running, running, wait_until
from tests.validate.onnx_engine import OnnxEngine
from tests.validate.small_bundle import Fault

from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle
from attnport.serve.served_model import Batching, ServedModel


def settled(endpoint: Running) -> None:
    task = endpoint.server._getting_ready
    wait_until(lambda: task is not None and task.done())


def test_a_wrong_engine_never_becomes_ready(attention: Bundle) -> None:
    wrong = OnnxEngine(attention, fault=Fault(scale=1.1))
    right = ServedModel("right", "1", attention, open_engine(attention, "ort-cpu"))
    model = ServedModel("wrong", "1", attention, wrong)
    with running([model, right], ready=False) as endpoint:
        settled(endpoint)
        reply = endpoint.send("GET", "/v2/models/wrong/ready")
        assert reply.status == 503
        assert "times the bound" in json.loads(reply.body)["error"]
        status, answer = endpoint.infer("wrong", {"inputs": []})
        assert status == 503
        assert "is not ready" in answer["error"]
        assert endpoint.send("GET", "/v2/models/right/ready").status == 200
        assert endpoint.send("GET", "/v2/health/ready").status == 503
        assert endpoint.send("GET", "/v2/health/live").status == 200
        assert (
            b'attnport_model_ready{model="wrong",version="1"} 0.0'
            in endpoint.send("GET", "/metrics").body
        )


@pytest.mark.parametrize(("enabled", "ready"), [(True, False), (False, True)])
def test_rows_that_influence_each_other_are_not_batched(
    tmp_path: Path, enabled: bool, ready: bool
) -> None:
    """The module itself centres its rows: it is right as a whole, and must not share a batch."""
    bundle = identity_bundle(tmp_path / "centred", "float32")
    model = ServedModel(
        "centred", "1", bundle, _Centred(bundle), batching=Batching(enabled=enabled)
    )
    with running([model], ready=False) as endpoint:
        settled(endpoint)
        assert model.ready is ready
        assert ready or "rows of a batch influence each other" in model.reason


class _Centred(OnnxEngine):
    """Gives y = x for what it has seen as a whole case; alone, a row of it comes out as zero."""

    def __init__(self, bundle: Bundle) -> None:
        self.kind = "centred"
        self.inputs, self.outputs = bundle.manifest.inputs, bundle.manifest.outputs
        cases = [bundle.load_case(record.name) for record in bundle.manifest.cases]
        self._seen = [case.inputs["x"] for case in cases]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = feeds["x"]
        known = any(x.shape == seen.shape and np.array_equal(x, seen) for seen in self._seen)
        return {"y": x.copy() if known else np.zeros_like(x)}


def test_without_several_rows_nothing_proves_batching(tmp_path: Path) -> None:
    bundle = identity_bundle(tmp_path / "alone", "float32", cases=((1, 1), (1, 3)))
    model = ServedModel("alone", "1", bundle, open_engine(bundle, "ort-cpu", threads=1))
    with running([model], ready=False) as endpoint:
        settled(endpoint)
        assert not model.ready
        assert "no case has several rows" in model.reason


@pytest.mark.parametrize("unproved", [False, True])
def test_without_cases_only_unproved_is_ready(tmp_path: Path, unproved: bool) -> None:
    bundle = identity_bundle(tmp_path / "none", "float32", cases=())
    engine = open_engine(bundle, "ort-cpu", threads=1)
    model = ServedModel("none", "1", bundle, engine, unproved=unproved)
    with running([model], ready=False) as endpoint:
        settled(endpoint)
        assert model.ready is unproved
        assert unproved or "holds no case" in model.reason
