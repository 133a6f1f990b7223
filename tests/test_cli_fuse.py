"""`attnport fuse` and `attnport inspect --require`: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.export.nets import WIDTH, Net, project, self_attention
from tests.export.ways_scores import operator_attention

from attnport import cli

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def separate(tmp_path: Path) -> Path:
    onnx.save(self_attention(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


@pytest.fixture
def without(tmp_path: Path) -> Path:
    net = Net()
    onnx.save(net.model(project(net, net.input("x", ["b", "n", WIDTH]))), tmp_path / "none.onnx")
    return tmp_path / "none.onnx"


@pytest.fixture
def capped(tmp_path: Path) -> Path:
    onnx.save(operator_attention(softcap=2.0), tmp_path / "capped.onnx")
    return tmp_path / "capped.onnx"


def test_a_line_for_each_attention_and_group(separate: Path, capsys: Capture) -> None:
    out = separate.with_name("out.onnx")
    assert cli.main(["fuse", str(separate), str(out), "--require"]) == 0
    shown = capsys.readouterr().out
    assert "canonical pattern" in shown
    for name in ("attn0 ", "attn0/qkv "):
        (line,) = [line for line in shown.splitlines() if name in line]
        assert " yes " in line


def test_json(separate: Path, capsys: Capture) -> None:
    out = separate.with_name("out.onnx")
    assert cli.main(["fuse", str(separate), str(out), "--json", "--axis", "seq=1:5:9"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [outcome["done"] for outcome in content["outcomes"]] == [True, True]
    assert content["path"] == str(out)


def test_the_operator(separate: Path, capsys: Capture) -> None:
    out = separate.with_name("out.onnx")
    assert cli.main(["fuse", str(separate), str(out), "--form", "attention"]) == 0
    assert "opset 23" in capsys.readouterr().out
    assert "Attention" in [node.op_type for node in onnx.load(out).graph.node]


def test_an_attention_that_is_left(capped: Path, capsys: Capture) -> None:
    out = capped.with_name("out.onnx")
    assert cli.main(["fuse", str(capped), str(out)]) == 0
    assert cli.main(["fuse", str(capped), str(out), "--require"]) == 1
    assert "softcap" in capsys.readouterr().out
    assert out.is_file()


def test_no_attention(without: Path, capsys: Capture) -> None:
    out = without.with_name("out.onnx")
    assert cli.main(["fuse", str(without), str(out)]) == 0
    assert "no attention was found" in capsys.readouterr().out
    assert cli.main(["fuse", str(without), str(out), "--require"]) == 3


def test_inspect_require(separate: Path, without: Path) -> None:
    assert cli.main(["inspect", str(separate)]) == 0
    assert cli.main(["inspect", str(separate), "--require"]) == 1
    assert cli.main(["inspect", str(without), "--require", "--json"]) == 3
    out = separate.with_name("out.onnx")
    assert cli.main(["fuse", str(separate), str(out)]) == 0
    assert cli.main(["inspect", str(out), "--require"]) == 0


def test_inspect_require_of_a_plan(tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "model.plan"
    plan.touch()
    assert cli.main(["inspect", str(plan), "--require"]) == 2
    assert "is a plan" in capsys.readouterr().err


def test_a_form_that_does_not_exist(separate: Path, capsys: Capture) -> None:
    assert cli.main(["fuse", str(separate), "out.onnx", "--form", "flash"]) == 2
    assert "take pattern or attention" in capsys.readouterr().err


def test_a_file_that_does_not_exist(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["fuse", str(tmp_path / "no.onnx"), str(tmp_path / "out.onnx")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_bundles_own_graph_is_not_overwritten(separate: Path, capsys: Capture) -> None:
    model = separate.with_name("model.onnx")
    separate.rename(model)
    before = model.read_bytes()
    (model.parent / "bundle.json").write_text("{}")
    assert cli.main(["fuse", str(model), str(model)]) == 2
    assert "is part of the bundle" in capsys.readouterr().err
    assert model.read_bytes() == before
    assert cli.main(["fuse", str(model), str(model.with_name("fused.onnx"))]) == 0
