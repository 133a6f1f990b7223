"""The repositories that we write, loaded and served by the real tritonserver. `make test-triton`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.bundles import identity_bundle
from tests.serve.tritonserver import (
    TritonRefusedError,
    TritonServer,
    run_client,
    tritonserver,
)
from tests.validate.small_bundle import make_bundle

from attnport import cli
from attnport.engines.engine import Engine
from attnport.export.bundle import Bundle
from attnport.export.records import Dtype
from attnport.serve.open_models import Source
from attnport.serve.repository.config_from_bundle import RepositoryOptions
from attnport.serve.repository.write import write_repository
from attnport.validate.parity import check_parity

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        "ATTNPORT_TRITON_VENV" not in os.environ, reason="`make test-triton` runs these"
    ),
]

CLIENT = str(Path(__file__).with_name("tritonclient_run.py"))
DTYPES: tuple[Dtype, ...] = ("float16", "int64", "bool")
PYTHON = RepositoryOptions(backend="python", threads=1)


@dataclass
class Served:
    """A tritonserver and what it serves.

    Attributes:
        server: It.
        bundles: By the model's name.
        repository: Its repository.
    """

    server: TritonServer
    bundles: dict[str, Bundle]
    repository: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("triton")
    bundles = {"attention": make_bundle(folder / "small")}
    half = make_bundle(folder / "half", "float16")
    bundles["attention-half"] = half
    for dtype in DTYPES:
        bundles[f"identity-{dtype}"] = identity_bundle(folder / dtype, dtype)
    sources = [Source(bundle.path, name) for name, bundle in bundles.items()]
    sources.append(Source(bundles["attention"].path, "versions", "3"))
    sources.append(Source(bundles["attention"].path, "versions", "12"))
    write_repository(sources, folder / "repository", PYTHON)
    with tritonserver(folder / "repository", folder / "work") as server:
        yield Served(server, bundles, folder / "repository")


class Recorded(Engine):
    """Gives what a client got for each case, so that it is judged like an engine."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self.kind = "oip"
        self.inputs, self.outputs = bundle.manifest.inputs, bundle.manifest.outputs
        self._files = [folder / f"{record.name}.out.npz" for record in bundle.manifest.cases]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(np.load(self._files.pop(0)))

    def placement(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    "name", ["attention", "attention-half", *(f"identity-{dtype}" for dtype in DTYPES)]
)
def test_the_cases_come_out_of_it(
    served: Served, tmp_path: Path, protocol: str, name: str
) -> None:
    bundle = served.bundles[name]
    for record in bundle.manifest.cases:
        inputs: dict[str, Any] = dict(bundle.load_case(record.name).inputs)
        np.savez(tmp_path / f"{record.name}.in.npz", **inputs)
    port = served.server.http_port if protocol == "http" else served.server.grpc_port
    printed = run_client(CLIENT, protocol, f"127.0.0.1:{port}", name, str(tmp_path))
    engine = Recorded(bundle, tmp_path)
    for record in bundle.manifest.cases:
        for finding in check_parity(engine, bundle, record.name):
            assert finding.status == "passed", finding.message
    inferences, executions = map(int, printed.split())
    assert inferences > executions, "Triton batched nothing"


def test_validate_proves_it(served: Served) -> None:
    for name, bundle in served.bundles.items():
        url = f"{served.server.url}/v2/models/{name}"
        assert cli.main(["validate", url, "--bundle", str(bundle.path)]) == 0
    url = f"{served.server.url}/v2/models/versions/versions/12"
    assert cli.main(["validate", url, "--bundle", str(served.bundles["attention"].path)]) == 0


def test_it_warmed_up_with_the_cases(served: Served) -> None:
    log = served.server.log.read_text("utf-8")
    assert "failed" not in log.lower()
    config = (served.repository / "attention" / "config.pbtxt").read_text("utf-8")
    assert config.count("model_warmup {") == 3


def _as_python(repository: Path, model: str, python_model: Path) -> None:
    """A copy for the one backend that is here: Triton checks dims and types only after it loads."""
    config = repository / model / "config.pbtxt"
    text = config.read_text("utf-8")
    text = re.sub(r'backend: "\w+"', 'backend: "python"', text)
    text = re.sub(r'default_model_filename: "[\w.]+"', 'default_model_filename: "model.py"', text)
    text = re.sub(r" profile: \[[^]]*\]", "", text.replace("KIND_GPU", "KIND_CPU"))
    config.write_text(re.sub(r"optimization \{.*?^\} \} \}$", "", text, flags=re.S | re.M))
    for version in (repository / model).glob("[0-9]*"):
        shutil.copy(python_model, version / "model.py")


@pytest.mark.parametrize("accelerator", [False, True])
def test_configs_of_other_backends_load(served: Served, tmp_path: Path, accelerator: bool) -> None:
    bundle = served.bundles["attention"]
    repository = tmp_path / "repository"
    options = RepositoryOptions(accelerator=accelerator, threads=1)
    write_repository([Source(bundle.path, "model")], repository, options)
    _as_python(repository, "model", served.repository / "attention" / "1" / "model.py")
    with tritonserver(repository, tmp_path / "work") as server:
        url = f"{server.url}/v2/models/model"
        assert cli.main(["validate", url, "--bundle", str(bundle.path)]) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_batch_size: 3", "max_batch_size: 3\nnonsense: 1"),
        ("max_queue_delay_microseconds: 0", "preferred_batch_size: [9]"),
        ("dims: [-1, 32]", "dims: [0, 32]"),
        ("dims: [-1, 32]", "dims: [-5, 32]"),
        ('input_data_file: "b1n1.x"', 'input_data_file: "nothing.x"'),
        ("TYPE_FP32", "TYPE_FP33"),
    ],
)
def test_what_our_checks_refuse_it_refuses(
    served: Served, tmp_path: Path, old: str, new: str
) -> None:
    repository = tmp_path / "repository"
    write_repository([Source(served.bundles["attention"].path, "model")], repository, PYTHON)
    config = repository / "model" / "config.pbtxt"
    text = config.read_text("utf-8")
    assert old in text
    config.write_text(text.replace(old, new))
    with (
        pytest.raises(TritonRefusedError),
        tritonserver(repository, tmp_path / "work"),
    ):
        pytest.fail("it took the config")
