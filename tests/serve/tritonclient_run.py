"""Run by the Python of the Triton environment: cases through tritonclient, by HTTP or gRPC.

python tritonclient_run.py http|grpc ADDRESS MODEL FOLDER reads FOLDER/*.npz, writes FOLDER/*.out.npz
and prints how many requests and executions the server counted.
"""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype


def main(protocol: str, address: str, model: str, folder: str) -> None:
    triton = importlib.import_module(f"tritonclient.{protocol}")
    client = triton.InferenceServerClient(address)
    outputs = [tensor["name"] for tensor in _metadata(client, model)["outputs"]]
    assert client.is_server_live()
    assert client.is_model_ready(model)
    for file in sorted(Path(folder).glob("*.in.npz")):
        result = client.infer(model, _inputs(triton, np.load(file)))
        out = {name: result.as_numpy(name) for name in outputs}
        np.savez(file.with_name(file.name.replace(".in.npz", ".out.npz")), **out)
    print(_counts_of_many(triton, address, model, folder))


def _counts_of_many(triton: Any, address: str, model: str, folder: str) -> str:
    """Sends the first case 32 times at once, so that Triton batches them."""
    first = np.load(sorted(Path(folder).glob("*.in.npz"))[0])
    arrays = {name: first[name] for name in first.files}

    def ask(_: int) -> None:
        client = triton.InferenceServerClient(address)
        client.infer(model, _inputs(triton, arrays))
        client.close()

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(32)))
    client = triton.InferenceServerClient(address)
    options = {"as_json": True} if triton.__name__.endswith("grpc") else {}
    stats = client.get_inference_statistics(model, **options)["model_stats"][0]
    return f"{stats['inference_count']} {stats['execution_count']}"


def _metadata(client: Any, model: str) -> Any:
    options = {"as_json": True} if "grpc" in type(client).__module__ else {}
    return client.get_model_metadata(model, **options)


def _inputs(triton: Any, arrays: Any) -> list[Any]:
    found = []
    for name in getattr(arrays, "files", arrays):
        array = arrays[name]
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        found.append(tensor)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
