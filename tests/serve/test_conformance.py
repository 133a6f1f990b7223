"""The standard client, tritonclient.http, against our endpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.serve.bundles import sample
from tests.serve.running import Running

from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle
from attnport.serve.oip.datatypes import oip_datatype

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's own, at import
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

DTYPES = ("float32", "float16", "int64", "int32", "uint8", "bool")


@pytest.fixture
def client(live: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(live.address) as made:
        yield made


def _input(array: np.ndarray, dtype: str, *, binary: bool = True, name: str = "x") -> Any:
    tensor = triton.InferInput(name, list(array.shape), oip_datatype(dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_in_and_out(client: Any, dtype: str) -> None:
    x = sample(dtype)
    result = client.infer(f"identity-{dtype}", [_input(x, dtype)], request_id="my request")
    y = result.as_numpy("y")
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)
    assert result.get_response()["id"] == "my request"


@pytest.mark.parametrize("dtype", ["float32", "int64", "int32", "uint8", "bool"])
def test_json_in_and_out(client: Any, dtype: str) -> None:
    x = sample(dtype)
    wanted = [triton.InferRequestedOutput("y", binary_data=False)]
    inputs = [_input(x, dtype, binary=False)]
    result = client.infer(f"identity-{dtype}", inputs, outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("y"), x)


def test_bfloat16_by_raw_bytes(client: Any) -> None:
    x = sample("bfloat16")
    result = client.infer("identity-bfloat16", [_input(x, "bfloat16")])
    np.testing.assert_array_equal(result.as_numpy("y").astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_both_ways(client: Any, algorithm: str) -> None:
    x = sample("float32", rows=8, tokens=16)
    result = client.infer(
        "identity-float32",
        [_input(x, "float32")],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), x)


def test_attention_gives_what_the_engine_gives(client: Any, attention: Bundle) -> None:
    x = attention.load_case("b2n7").inputs["x"]
    result = client.infer("attention", [_input(x, "float32")])
    with open_engine(attention, "ort-cpu") as engine:
        expected = engine.run({"x": x})["y"]
    np.testing.assert_array_equal(result.as_numpy("y"), expected)


def test_infinities_go_through_json(client: Any) -> None:
    x = sample("float32")
    x[0, 0, :3] = (np.inf, -np.inf, np.nan)
    wanted = [triton.InferRequestedOutput("y", binary_data=False)]
    result = client.infer("identity-float32", [_input(x, "float32", binary=False)], outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("y"), x)


def test_many_requests_at_a_time(live: Running) -> None:
    with triton.InferenceServerClient(live.address, concurrency=8) as many:
        arrays = [sample("float32", rows=1 + seed % 3, seed=seed) for seed in range(32)]
        waiting = [many.async_infer("identity-float32", [_input(x, "float32")]) for x in arrays]
        for x, request in zip(arrays, waiting, strict=True):
            np.testing.assert_array_equal(request.get_result().as_numpy("y"), x)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("attention")
    assert client.is_model_ready("versions", "2")
    assert not client.is_model_ready("nothing")
    server = client.get_server_metadata()
    assert server["name"] == "attnport"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("attention")
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1, 32]}]
    assert model["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, -1, 32]}]
    assert client.get_model_metadata("versions")["versions"] == ["2", "10"]


def test_the_highest_version_answers_unless_one_is_named(client: Any) -> None:
    inputs = [_input(sample("float32"), "float32")]
    assert client.infer("versions", inputs).get_response()["model_version"] == "10"
    assert client.infer("versions", inputs, "2").get_response()["model_version"] == "2"


def test_errors_reach_the_client_as_sentences(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="there is no model 'nothing': there are"):
        client.infer("nothing", [_input(sample("float32"), "float32")])
    with pytest.raises(InferenceServerException, match="there is no input 'z': the model takes x"):
        client.infer("attention", [_input(sample("float32"), "float32", name="z")])
