"""Bad input at the command line: an exit code and one sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.validate.small_bundle import make_bundle

from attnport import cli
from attnport.cli.failures import tell_failure
from attnport.errors import InternalError

ERRORS = [
    (["models", "multi-haed"], "no model is called 'multi-haed': did you mean multi-head"),
    (
        ["export", "multi-head", "--out", "{tmp}/b", "--set", "d_modell=8"],
        "has no size 'd_modell'",
    ),
    (["export", "multi-head", "--out", "{tmp}/b", "--set", "d_model"], "is not KEY=VALUE"),
    (["export", "multi-head", "--out", "{tmp}/b", "--set", "a=1", "--set", "a=2"], "give it once"),
    (["export", "multi-head", "--out", "{tmp}/b", "--set", "num_heads=7"], "512"),
    (["export", "multi-head", "--out", "{tmp}/b", "--axis", "seq=9"], "not of the form name=min"),
    (
        ["export", "multi-head", "--out", "{tmp}/b", "--axis", "sequence=1:2:3"],
        "no axis 'sequence'",
    ),
    (["export", "multi-head", "--out", "{tmp}/b", "--axis", "seq=3:2:1"], "min <= opt <= max"),
    (["export", "multi-head", "--out", "{tmp}/b", "--case-size", "seq=few"], "not a whole number"),
    (["export", "multi-head", "--out", "{tmp}/b", "--dtype", "float17"], "float32, float16"),
    (["export", "multi-head", "--out", "{tmp}/b", "--opset", "7"], "opset 7"),
    (["export", "multi-head", "--out", "{tmp}/b", "--engine", "tensort"], "no engine 'tensort'"),
    (
        ["export", "multi-head", "--out", "{tmp}/b", "--input", "x:float32[2]"],
        "has its own inputs",
    ),
    (["export", "nowhere.py:make", "--out", "{tmp}/b"], "nowhere.py"),
    (["export", "no.such:thing", "--out", "{tmp}/b"], "no.such"),
    (["export", "multi-head", "--out", "{tmp}/taken"], "does not overwrite"),
    (["build", "{tmp}/nothing", "--engine", "ort-cpu"], "is not a folder"),
    (["build", "{tmp}/taken", "--engine", "ort-cpu"], "holds no bundle.json"),
    (["build", "{tmp}/taken"], "no engine was named: add --engine"),
    (["build", "{tmp}/changed", "--engine", "ort-cpu"], "was changed after export"),
    (["build", "{tmp}/lacking", "--engine", "ort-cpu"], "lacks model.onnx"),
    (["build", "{tmp}/newer", "--engine", "ort-cpu"], "upgrade attnport"),
    (["validate", "{tmp}/nothing", "--engine", "ort-cpu"], "is not a folder"),
    (["validate", "{tmp}/small", "--engine", "ort-cup"], "the engines are: torch-eager"),
    (
        ["validate", "{tmp}/small", "--require", "{tmp}/nothing.yaml"],
        "(No such file or directory)",
    ),
    (["validate", "{tmp}/small", "--require", "{tmp}/wrong.yaml"], "did you mean 'parity'?"),
    (["inspect", "{tmp}/nothing.onnx"], "does not exist"),
    (["inspect", "{tmp}/truncated.onnx"], "truncated.onnx"),
    (["inspect", "{tmp}/text.onnx"], "text.onnx"),
    (["inspect", "{tmp}/empty.onnx"], "empty.onnx"),
    (["inspect", "{tmp}/foreign.plan"], "is no plan"),
    (["run", "{tmp}/nothing.yaml"], "(No such file or directory)"),
    (["run", "{tmp}/wrong.yaml"], "is no key of a pipeline"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good bundle and every kind of bad file."""
    tmp = tmp_path_factory.mktemp("cli")
    for name in ("small", "changed", "lacking", "newer"):
        make_bundle(tmp / name)
    whole = (tmp / "small" / "model.onnx").read_bytes()
    (tmp / "changed" / "model.onnx").write_bytes(whole + b" ")
    (tmp / "lacking" / "model.onnx").unlink()
    manifest = json.loads((tmp / "newer" / "bundle.json").read_text("utf-8"))
    (tmp / "newer" / "bundle.json").write_text(json.dumps({**manifest, "format_version": 99}))
    (tmp / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp / "text.onnx").write_text("this is no model")
    (tmp / "empty.onnx").write_bytes(b"")
    (tmp / "foreign.plan").write_bytes(b"ptrt")
    (tmp / "taken").mkdir()
    (tmp / "taken" / "thesis.txt").write_text("precious")
    (tmp / "wrong.yaml").write_text("parityy: [ort-cpu]")
    return tmp


@pytest.mark.parametrize(("words", "said"), ERRORS, ids=lambda value: " ".join(value)[:60])
def test_bad_input_is_one_sentence_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    before = sorted(folder.rglob("*"))
    code = cli.main([word.format(tmp=folder) for word in words])
    shown = capsys.readouterr()
    assert code == 2
    assert said in shown.err
    assert len(shown.err.strip().splitlines()) == 1, shown.err
    assert "Traceback" not in shown.err
    assert sorted(folder.rglob("*")) == before, "something half-written was left behind"


@pytest.mark.parametrize(
    "words",
    [
        ["exportt"],
        ["export"],
        ["export", "multi-head"],
        ["export", "multi-head", "--out", "x", "--form", "fused"],
        ["models", "--jsonn"],
        ["export", "multi-head", "--out", "x", "--opset", "many"],
    ],
)
def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_verbose_shows_the_traceback_wherever_it_stands(
    capsys: pytest.CaptureFixture[str], place: int
) -> None:
    words = ["models", "nobody"]
    words.insert(place, "--verbose")
    assert cli.main(words) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "no model is called 'nobody'" in shown


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyError("x"), 4, "an error of attnport itself (KeyError: 'x')"),
        (InternalError("a pass promised more than it did"), 4, "a pass promised"),
        (FileNotFoundError(2, "No such file or directory", "a.onnx"), 2, "a.onnx cannot be used"),
        (OSError("no path in it"), 4, "an error of attnport itself"),
        (MemoryError(), 2, "not enough memory"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "attnport[export]"),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 4, "an error of attnport"),
    ],
)
def test_every_exception_becomes_a_sentence(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, said: str
) -> None:
    assert tell_failure(error, verbose=False) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) == 1


def test_an_error_of_ours_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def broken(path: str) -> onnx.ModelProto:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("attnport.export.onnx_file.inspect_model", broken)
    assert cli.main(["inspect", str(folder / "small" / "model.onnx")]) == 4
    assert "please report" in capsys.readouterr().err


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnport.export.onnx_file.inspect_model", interrupted)
    assert cli.main(["inspect", str(folder / "small" / "model.onnx")]) == 130
