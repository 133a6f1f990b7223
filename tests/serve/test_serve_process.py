"""`attnport serve` as users run it: starting, refusing, stopping under load."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.serve.bundles import WIDTH, identity_bundle
from tests.serve.process import clients, serve_process
from tests.serve.soak import soak
from tests.validate.small_bundle import make_bundle

from attnport import cli
from attnport.cli.failures import tell_failure
from attnport.validate.prove import prove
from attnport.validate.requirements import Requirements

INFER = "/v2/models/identity/infer"


def test_a_proved_bundle_is_served_and_stops_when_asked(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "small")
    wanted = Requirements(parity=("ort-cpu",), qkv=False, fusion=())
    prove(bundle, ["ort-cpu"], require=wanted).save(bundle.path / "report.json")
    with serve_process(tmp_path, str(bundle.path), "--drain", "0") as served:
        url = f"http://127.0.0.1:{served.port}/v2/models/small"
        with urllib.request.urlopen(url, timeout=10) as response:
            assert json.load(response)["name"] == "small"
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(30) == 0
    assert [line["event"] for line in served.lines()][-2:] == ["stopping", "stopped"]


def test_a_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    """Every request that was accepted, that is whose head was read, is answered with its result."""
    bundle = identity_bundle(tmp_path / "identity", "float32")
    with serve_process(tmp_path, str(bundle.path), "--unproved", "--drain", "0.3") as served:
        with clients(8, served.port, INFER, WIDTH) as asking:
            time.sleep(1.0)
            before = sum(len(client.answered) for client in asking)
            assert served.stop() == 0
        accepted = {
            line["request_id"]: line["status"]
            for line in served.lines()
            if line["event"] == "request"
        }
    answered = set().union(*(client.answered for client in asking))
    assert before > 50
    assert len(answered) > before, "nobody asked while it stopped"
    assert [wrong for client in asking for wrong in client.wrong] == []
    assert set(accepted.values()) == {200}
    assert set(accepted) == answered


def test_serving_needs_no_torch() -> None:
    code = (
        "import sys, attnport.serve.server, attnport.serve.open_models, attnport.serve.app; "
        "import attnport.serve.prove_endpoint, attnport.serve.repository.write; "
        "sys.exit(', '.join(m for m in ('torch', 'onnxscript') if m in sys.modules) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["starlette", "uvicorn", "httptools", "prometheus_client"])
def test_what_is_not_installed_is_named(capsys: pytest.CaptureFixture[str], module: str) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert tell_failure(error, verbose=False) == 2
    assert "pip install 'attnport[serve]'" in capsys.readouterr().err


BAD = [
    (["{tmp}/nothing"], "is not a folder"),
    (["{tmp}/small"], "has no report.json in it or beside it"),
    (["{tmp}/small", "--report", "{tmp}/wrong.json"], "is not a report"),
    (["{tmp}/small", "--unproved", "--engine", "torch-eager"], "cannot be served"),
    (["{tmp}/small", "--unproved", "--engine", "ort-cup"], "cannot be served"),
    (["{tmp}/small", "--unproved", "--engine", "tensorrt-rtx"], "tensorrt-rtx"),
    (["{tmp}/small", "--unproved", "--port", "70000"], "port 70000 does not exist"),
    (["{tmp}/small", "--unproved", "--host", "203.0.113.1"], "cannot be listened on"),
    (["{tmp}/small", "--unproved", "--host", "no host"], "cannot be listened on"),
    (["{tmp}/small", "--unproved", "--max-queue", "0"], "the limit queue is 0"),
    (["{tmp}/small", "--unproved", "--max-requests", "-1"], "the limit requests is -1"),
    (["{tmp}/small", "--unproved", "--max-body-mib", "0"], "the limit body_bytes is 0"),
    (["{tmp}/small", "--unproved", "--timeout", "nan"], "the limit request_seconds is nan"),
    (["{tmp}/small", "--unproved", "--max-batch", "0"], "a batch of 0 rows"),
    (["{tmp}/small", "--unproved", "--batch-delay-ms", "-1"], "the batch delay is -0.001"),
    (["{tmp}/small", "--unproved", "--workers", "0"], "workers is 0"),
    (["{tmp}/small", "--unproved", "--threads", "0"], "threads is 0"),
    (["{tmp}/small", "--unproved", "--tls-key", "{tmp}/wrong.json"], "give both files"),
    (
        ["{tmp}/small", "--unproved", "--tls-key", "{tmp}/k", "--tls-certificate", "{tmp}/k"],
        "does not exist",
    ),
    (
        [
            "{tmp}/small",
            "--unproved",
            "--tls-key",
            "{tmp}/wrong.json",
            "--tls-certificate",
            "{tmp}/wrong.json",
        ],
        "TLS cannot be set up",
    ),
    (["{tmp}/small", "--unproved", "--token-file", "{tmp}/nothing"], "nothing cannot be used"),
    (["{tmp}/small", "--unproved", "--token-file", "{tmp}/empty"], "holds no token"),
    (["a b={tmp}/small", "--unproved"], "cannot stand in a URL"),
    (["m:x={tmp}/small", "--unproved"], "give a whole number from 1"),
    (["{tmp}/small", "{tmp}/small", "--unproved"], "two bundles are to be version 1"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("serve")
    make_bundle(tmp / "small")
    (tmp / "wrong.json").write_text("{}")
    (tmp / "empty").write_text("")
    return tmp


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda value: " ".join(value)[:60])
def test_bad_input(
    folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["serve", *(word.format(tmp=folder) for word in words)]) == 2
    lines = [
        line
        for line in capfd.readouterr().err.strip().splitlines()
        if not line.startswith(("attnport: warning:", "{"))
    ]
    assert said in lines[-1]
    assert len(lines) == 1


def test_bad_clients_disturb_nobody(tmp_path: Path) -> None:
    """A few seconds of what `make soak-serve` does for two minutes; growth takes that longer."""
    result = soak(4.0, tmp_path)
    assert result.wrong == []
    assert result.answered > 100
    assert result.bad
    before, after = result.idle
    assert after.descriptors <= before.descriptors
