"""The whole road for small models: bundles, reports and verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnport import Bundle, Report, cli

SIZES = {"d_model": 32, "num_heads": 2}
AXES = {"batch": [1, 2, 3], "seq": [1, 5, 9]}
PIPELINE: dict[str, Any] = {
    "engines": ["torch-eager", "ort-cpu", "tensorrt-rtx"],
    "require": {"parity": ["ort-cpu"], "parity_where_available": ["tensorrt-rtx"]},
    "latency": {"seconds": 0.2},
    "models": [
        {
            "model": "causal-multi-head",
            "name": "tiny",
            "set": SIZES,
            "axes": AXES,
            "dtypes": ["float32", "float16"],
        }
    ],
}
FINDING_KEYS = {
    "model", "bundle", "dtype", "engine", "check", "case", "required", "status", "numbers",
    "message",
}  # fmt: skip


def _run(folder: Path, **changes: Any) -> int:
    content = {**PIPELINE, "out": str(folder / "out"), **changes}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return cli.main(["run", str(folder / "pipeline.yaml")])


def _one_model(**changes: Any) -> list[dict[str, Any]]:
    model = {"model": "multi-head", "set": SIZES, "axes": AXES, "max_cases": 2, "latency": False}
    return [{**model, **changes}]


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("proved")
    return _run(folder), folder / "out"


def test_everything_holds_and_the_exit_code_says_so(proved: tuple[int, Path]) -> None:
    code, out = proved
    report = Report.load(out / "report.json")
    assert [f.message for f in report.findings if f.required and f.status != "passed"] == []
    assert (code, report.verdict) == (0, "proved")


def test_bundles_plans_and_page_are_there(proved: tuple[int, Path]) -> None:
    _, out = proved
    for dtype in ("float32", "float16"):
        bundle = Bundle.load(out / f"tiny-{dtype}")
        assert (bundle.name, bundle.dtype) == ("tiny", dtype)
        assert (bundle.path / "model.tensorrt-rtx.plan").is_file()
    assert (out / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_report_has_the_documented_keys(proved: tuple[int, Path]) -> None:
    content = json.loads((proved[1] / "report.json").read_text("utf-8"))
    assert {"verdict", "machine", "measurements", "findings"} <= set(content)
    assert all(set(finding) == FINDING_KEYS for finding in content["findings"])
    checks = {finding["check"] for finding in content["findings"]}
    assert {"parity", "fusion", "qkv", "causal"} <= checks


def test_half_precision_is_fused_and_bounded(proved: tuple[int, Path]) -> None:
    report = Report.load(proved[1] / "report.json")
    half = {(f.check, f.engine): f for f in report.findings if f.dtype == "float16"}
    assert half["fusion", "tensorrt-rtx"].status == "passed"
    assert half["causal", "tensorrt-rtx"].numbers["causal"] == "bounded"
    single = [f for f in report.findings if (f.dtype, f.check) == ("float32", "fusion")]
    assert {f.status for f in single} == {"not run"}


def test_latency_is_measured_in_single_precision_only(proved: tuple[int, Path]) -> None:
    report = Report.load(proved[1] / "report.json")
    timed = {m.dtype for m in report.measurements if m.kind == "latency" and m.values}
    assert timed == {"float32"}


def test_a_requirement_that_fails_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require = {"parity": ["ort-cpu"], "fusion": [], "kernels": {"tensorrt-rtx": 1}}
    assert _run(tmp_path, models=_one_model(dtypes=["float16"]), require=require) == 1
    assert "at most 1 required" in capsys.readouterr().out


def test_a_required_engine_that_cannot_run_here_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnport.engines.devices.why_no_cuda", lambda: "no CUDA device")
    require = {"parity": ["ort-cpu", "ort-cuda"]}
    assert _run(tmp_path, models=_one_model(), engines=["ort-cpu"], require=require) == 3
    assert "not proved: Not yet." in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert _run(tmp_path, out=str(tmp_path / "file" / "out")) == 2
    shown = capsys.readouterr().err
    assert "cannot be made (Not a directory)" in shown
    assert "multi-head" not in shown


def test_a_model_that_cannot_be_exported_fails_and_the_others_are_proved(tmp_path: Path) -> None:
    source = tmp_path / "broken.py"
    source.write_text(
        "import torch\n"
        "class Broken(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.tensor(x.tolist())\n"
    )
    broken = {
        "model": f"{source}:Broken",
        "inputs": ["x:float32[batch,4]"],
        "axes": {"batch": [1, 2, 3]},
        "latency": False,
    }
    assert _run(tmp_path, models=[broken, *_one_model()], engines=["ort-cpu"]) == 1
    report = Report.load(tmp_path / "out" / "report.json")
    failed = [f for f in report.findings if f.status == "failed"]
    assert [(f.model, f.check, f.case, f.required) for f in failed] == [
        ("broken-Broken", "engine", "export", True)
    ]
    assert failed[0].message.startswith("not exported: ")
    passed = {f.check for f in report.findings if f.model == "multi-head" and f.required}
    assert {"parity", "qkv"} <= passed
