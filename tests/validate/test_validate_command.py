"""`attnport validate`, `bisect` and `explain` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnport import cli
from attnport.validate.report import Report

GENERATOR = """\
import numpy as np

def generate():
    yield "mine", {"x": np.ones((1, 3, 32), np.float32)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("typed")
    sizes = ["--set", "d_model=32", "--set", "num_heads=2", "--axis", "seq=1:5:9"]
    words = ["export", "causal-multi-head", *sizes, "--axis", "batch=1:2:3"]
    assert cli.main([*words, "--out", str(place / "bundle")]) == 0
    (place / "cases.py").write_text(GENERATOR)
    return place


def validate(folder: Path, *more: str) -> int:
    return cli.main(["validate", str(folder / "bundle"), *more])


def test_everything_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = tmp_path / "new" / "folder"
    code = validate(
        folder, "--further", "--cases", f"{folder / 'cases.py'}:generate", "--seed", "3",
        "--report", str(reports / "r.json"), "--html", str(reports / "r.html"),
        "--junit", str(reports / "r.xml"), "--markdown", str(reports / "r.md"),
    )  # fmt: skip
    assert code == 0
    assert {file.name for file in reports.iterdir()} == {"r.json", "r.html", "r.xml", "r.md"}
    cases = {f.case for f in Report.load(reports / "r.json").findings if f.check == "parity"}
    assert {"own-mine", "numbers-large", "high-primes"} <= cases
    assert "What was proved" in (reports / "r.html").read_text("utf-8")
    assert validate(folder, "--baseline", str(reports / "r.json")) == 3
    assert "the baseline holds it, and this report does not" in capsys.readouterr().out


def test_the_requirements_of_the_folder_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attnport.yaml").write_text("engines: [ort-cpu]\nrequire: {parity: [ort-cpu]}\n")
    assert validate(folder) == 0
    assert "requirements: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cases", "none.npz"], "there is no file none.npz"),
        (["--baseline", "none.json"], "is not a report"),
        (["--require", "PIPELINE"], "it is a pipeline: `attnport run "),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pipeline.yaml").write_text("out: build\nengines: [ort-cpu]\nmodels: []\n")
    words = [str(folder / "pipeline.yaml") if word == "PIPELINE" else word for word in words]
    code = validate(folder, *words)
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("option", ["--report", "--html", "--junit", "--markdown"])
def test_a_report_that_cannot_be_written_is_told_before_the_proof(
    folder: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from attnport import api

    monkeypatch.setattr(api, "prove", lambda *args, **keywords: pytest.fail("it was proved"))
    (tmp_path / "file").write_text("")
    assert validate(folder, option, str(tmp_path / "file" / "r.json")) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert validate(folder, option, str(tmp_path)) == 2
    assert "it is a folder" in capsys.readouterr().err


def test_looking_at_the_paths_leaves_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = str(tmp_path / "new" / "deep" / "r.json")
    assert validate(folder, "--report", report, "--baseline", "none.json") == 2
    assert "none.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bisect_and_explain_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bisect", str(folder / "bundle"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["side"] == ""
    assert cli.main(["explain"]) == 0
    assert cli.main(["explain", "parity"]) == 0
    assert "What to try" in capsys.readouterr().out
    assert cli.main(["explain", "party"]) == 2


MODULES = """\
import torch
from torch import nn

class Overflows(nn.Module):
    def forward(self, x):
        return x * 3e4 * 3e4

class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.weight.data[0, 0] = float("nan")
    def forward(self, x):
        return self.linear(x)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Overflows", "PyTorch overflows here: the module itself is not finite in this dtype"),
        ("Holds", "the module itself is not finite in float64"),
    ],
)
def test_a_module_at_fault_is_named_and_not_the_engine(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text(MODULES)
    words = ["--input", "x:float32[batch,4]", "--axis", "batch=1:2:3", "--dtype", "float16"]
    bundle = str(tmp_path / "bundle")
    assert cli.main(["export", f"{tmp_path / 'wrong.py'}:{name}", *words, "--out", bundle]) == 0
    assert f"no case can prove anything: {said}" in capsys.readouterr().err
    assert cli.main(["validate", bundle]) == 3
    assert f"no informative case passed for output: {said}" in capsys.readouterr().out


def test_a_file_in_place_of_a_bundle_is_told_apart(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(folder / "bundle" / "model.onnx")]) == 2
    assert (
        f"is a file of a bundle: give its folder, {folder / 'bundle'}" in capsys.readouterr().err
    )
    (tmp_path / "other.onnx").write_text("")
    assert cli.main(["validate", str(tmp_path / "other.onnx")]) == 2
    assert "has no module to be compared with" in capsys.readouterr().err


def test_a_baseline_of_another_model_is_told_before_the_proof(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from attnport import api

    earlier = tmp_path / "earlier.json"
    assert validate(folder, "--report", str(earlier)) == 0
    monkeypatch.setattr(api, "prove", lambda *args, **keywords: pytest.fail("it was proved"))
    words = ["export", "multi-head", "--set", "d_model=32", "--set", "num_heads=2"]
    assert cli.main([*words, "--max-cases", "1", "--out", str(tmp_path / "other")]) == 0
    capsys.readouterr()
    assert cli.main(["validate", str(tmp_path / "other"), "--baseline", str(earlier)]) == 2
    assert "the baseline is of causal-multi-head in float32" in capsys.readouterr().err
