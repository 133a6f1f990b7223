"""The engine `oip`, and `attnport validate URL --bundle B`."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.bundles import identity_bundle
from tests.serve.running import Running, running
from tests.validate.onnx_engine import OnnxEngine
from tests.validate.small_bundle import Fault

from attnport import cli
from attnport.errors import EngineUnavailableError, InputError, UsageError
from attnport.export.bundle import Bundle
from attnport.serve.oip.client import EndpointError
from attnport.serve.oip.http_transport import HttpTransport
from attnport.serve.oip_engine import OipEngine, has_binary_tensors
from attnport.serve.prove_endpoint import prove_endpoint
from attnport.serve.served_model import ServedModel
from attnport.validate.report import Report


@pytest.fixture
def transport(live: Running) -> Iterator[HttpTransport]:
    made = HttpTransport(f"http://{live.address}")
    yield made
    made.close()


@pytest.mark.parametrize("binary", [True, False])
def test_an_endpoint_is_proved(attention: Bundle, transport: HttpTransport, binary: bool) -> None:
    engine = OipEngine(attention, transport, model="attention", binary=binary)
    report = prove_endpoint(attention, engine)
    assert report.verdict == "proved"
    cases = {finding.case for finding in report.findings if finding.check == "parity"}
    assert cases == {"b1n1", "b2n7", "b3n16", "coverage"}
    assert has_binary_tensors(transport)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "bool"])
def test_every_dtype_is_proved(tmp_path: Path, transport: HttpTransport, dtype: str) -> None:
    bundle = identity_bundle(tmp_path / dtype, dtype)  # type: ignore[arg-type]
    engine = OipEngine(bundle, transport, model=f"identity-{dtype}", version="1")
    assert prove_endpoint(bundle, engine).verdict == "proved"


def test_a_wrong_endpoint_fails(attention: Bundle) -> None:
    wrong = OnnxEngine(attention, fault=Fault(heads=(1, 0)))
    model = ServedModel("wrong", "1", attention, wrong)
    model.unproved = True
    with running([model], ready=False) as endpoint:
        model.ready = True
        made = HttpTransport(f"http://{endpoint.address}")
        report = prove_endpoint(attention, OipEngine(attention, made, model="wrong"))
        made.close()
    assert report.verdict == "failed"


def test_another_model_is_told_from_metadata(
    tmp_path: Path, attention: Bundle, transport: HttpTransport
) -> None:
    report = prove_endpoint(attention, OipEngine(attention, transport, model="identity-int64"))
    assert report.verdict == "failed"
    (first, coverage) = report.findings
    assert "input 'x' is INT64 there and FP32 here" in first.message
    assert coverage.status == "not run"
    narrow = identity_bundle(tmp_path / "narrow", "float32", shape=("batch", 8), cases=())
    said = OipEngine(narrow, transport, model="identity-float32").disagreement()
    assert "input 'x' has shape [-1, -1, 8] there and ['batch', 8] here" in said


def test_inputs_are_checked_before_they_travel(
    attention: Bundle, transport: HttpTransport
) -> None:
    with pytest.raises(InputError, match="missing: x"):
        OipEngine(attention, transport, model="attention").run({})


def test_an_unknown_model(attention: Bundle, transport: HttpTransport) -> None:
    with pytest.raises(EndpointError, match="answers 404: there is no model 'nothing'"):
        OipEngine(attention, transport, model="nothing").disagreement()


def test_nobody_answers(attention: Bundle) -> None:
    nobody = HttpTransport("http://127.0.0.1:9")
    with pytest.raises(EngineUnavailableError, match="does not answer"):
        OipEngine(attention, nobody).disagreement()
    assert prove_endpoint(attention, OipEngine(attention, nobody)).verdict == "not proved"


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:port", "http://h:99999", "h:80"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UsageError, match="is no URL of an endpoint"):
        HttpTransport(url)


class _Foreign(http.server.BaseHTTPRequestHandler):
    """A server that speaks something else: what it says is set from outside."""

    body, status = b"", 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815 - http.server names it so

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def foreign() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Foreign) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"<html>", 200, "holds no JSON"),
        (b"[]", 200, "holds no JSON object"),
        (b"{}", 200, "metadata lists no inputs"),
        (b'{"inputs": [1]}', 200, "metadata lists no inputs"),
        (b"it broke", 500, "answers 500: it broke"),
        (b"", 502, "answers 502: it says nothing more"),
    ],
)
def test_foreign_metadata(
    attention: Bundle, foreign: str, body: bytes, status: int, said: str
) -> None:
    _Foreign.body, _Foreign.status = body, status
    made = HttpTransport(foreign)
    with pytest.raises(EndpointError, match=said):
        OipEngine(attention, made).disagreement()
    made.close()


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([{"name": "y", "datatype": "FP16", "shape": [1, 1, 32], "data": [0] * 32}], "as FP16"),
        ([{"name": "z", "datatype": "FP32", "shape": [1], "data": [0]}], "gives 'z' as FP32"),
        ([{"name": "y", "datatype": "FP32", "shape": [1, 1, 32], "data": [0]}], "has 1 values"),
        ([{"name": "y", "datatype": "FP32"}], "is not what the protocol says"),
        ([3], "is not what the protocol says"),
        ([], None),
    ],
)
def test_foreign_results(
    attention: Bundle, foreign: str, outputs: list[object], said: str | None
) -> None:
    _Foreign.body, _Foreign.status = json.dumps({"outputs": outputs}).encode(), 200
    made = HttpTransport(foreign)
    x = attention.load_case("b1n1").inputs
    engine = OipEngine(attention, made)
    if said is None:
        assert engine.run(x) == {}
    else:
        with pytest.raises(EndpointError, match=said):
            engine.run(x)
    made.close()


def _validate(*words: str) -> int:
    return cli.main(["validate", *words])


def test_validate_a_url(live: Running, attention: Bundle, tmp_path: Path) -> None:
    url = f"http://{live.address}/v2/models/attention/versions/1"
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    words = (url, "--bundle", str(attention.path), "--report", str(report), "--html", str(page))
    assert _validate(*words) == 0
    assert Report.load(report).verdict == "proved"
    assert {finding.engine for finding in Report.load(report).findings} == {"oip"}
    assert "oip" in page.read_text("utf-8")


def test_validate_a_url_that_serves_another(
    live: Running, attention: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{live.address}/v2/models/identity-bool"
    assert _validate(url, "--bundle", str(attention.path)) == 1
    assert "serves another model than the bundle" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:9", "--bundle", "{bundle}"], "does not answer"),
        (["http://127.0.0.1:9"], "add --bundle"),
        (["http://127.0.0.1:9/v2/models/", "--bundle", "{bundle}"], "names no model"),
        (["http://127.0.0.1:9/v2/models/a/b", "--bundle", "{bundle}"], "names no model"),
        (["http://[::1", "--bundle", "{bundle}"], "is no URL"),
        (
            ["http://127.0.0.1:9", "--bundle", "{bundle}", "--latency"],
            "--latency is about engines",
        ),
        (["http://127.0.0.1:9", "--bundle", "b", "-e", "ort-cpu"], "--engine is about engines"),
        (["{bundle}", "--bundle", "{bundle}"], "goes with the URL of an endpoint"),
        (["http://127.0.0.1:9", "--bundle", "{bundle}", "--token-file", "{empty}"], "no token"),
    ],
)
def test_validate_wrongly(
    words: list[str],
    said: str,
    attention: Bundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert _validate(*(word.format(bundle=attention.path, empty=empty) for word in words)) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.strip().splitlines()) == 1
