"""Each command on a small model: what it prints, writes and returns."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.validate.small_bundle import make_bundle

import attnport
from attnport import cli

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--set", "d_model=32", "--set", "num_heads=2", "--axis", "batch=1:2:3"]
SMALL += ["--axis", "seq=1:5:9"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """multi-head in float16, with its TensorRT plan beside the .onnx."""
    out = tmp_path_factory.mktemp("commands") / "mh"
    words = ["export", "multi-head", "--out", str(out), "--dtype", "float16", *SMALL]
    assert cli.main([*words, "--engine", "tensorrt-rtx"]) == 0
    return out


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[dict[str, object]]]:
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    content: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
    return content


def test_models_lists_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    from attnport.models import model_names

    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in model_names())


def test_models_shows_one_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "multi-head-4096-32"]) == 0
    shown = capsys.readouterr().out
    assert "d_model=4096" in shown
    assert "x:float32[batch,seq,d_model]" in shown
    assert "seq=1:128:512" in shown


def test_export_leaves_onnx_and_plan_side_by_side(bundle: Path) -> None:
    assert (bundle / "model.onnx").is_file()
    assert (bundle / "model.tensorrt-rtx.plan").is_file()


def test_export_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "cross-attention", "--out", str(tmp_path / "x"), *SMALL]
    assert cli.main([*words, "--max-cases", "1", "--axis", "memory=1:4:8"]) == 0
    shown = capsys.readouterr().out
    assert "attn0/kv: 2 products of 2 projections became one MatMul" in shown
    assert "1 cases: min" in shown


def test_export_takes_a_module_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", f"{EXAMPLES / 'my_attention.py'}:make", "--out", str(tmp_path / "mine")]
    words += ["--input", "x:float32[batch,seq,64]=activation"]
    words += ["--input", "visible:bool[batch,seq]=mask"]
    words += ["--axis", "batch=1:2:3", "--axis", "seq=1:5:9"]
    assert cli.main(words) == 0
    assert "became one MatMul" in capsys.readouterr().out
    assert cli.main(["validate", str(tmp_path / "mine"), "--engine", "ort-cpu"]) == 0


def test_build_shows_what_fused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build", str(bundle), "--engine", "tensorrt-rtx"]) == 0
    shown = capsys.readouterr().out
    assert "_gemm_mha_v2" in shown
    assert "kernels: " in shown


def test_build_elsewhere(bundle: Path, tmp_path: Path) -> None:
    words = ["build", str(bundle), "--engine", "tensorrt-rtx", "--out", str(tmp_path / "plans")]
    assert cli.main(words) == 0
    assert (tmp_path / "plans" / "model.tensorrt-rtx.plan").is_file()


def test_inspect_json_of_an_onnx_file_and_of_its_bundle(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_file = _json(capsys, "inspect", str(bundle / "model.onnx"))
    (attention,) = of_file["attentions"]
    assert attention["recognised"]
    assert attention["nodes"]
    (group,) = of_file["projection_groups"]
    assert group["merged"]
    assert _json(capsys, "inspect", str(bundle)) == of_file


def test_inspect_json_of_a_plan(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "inspect", str(bundle / "model.tensorrt-rtx.plan"))
    assert found["attentions"][0]["fused"]
    assert found["projection_groups"][0]["merged_in_graph"]


@pytest.mark.parametrize("target", ["model.onnx", "", "model.tensorrt-rtx.plan"])
def test_inspect_for_people(bundle: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert cli.main(["inspect", str(bundle / target)]) == 0
    assert "attn0" in capsys.readouterr().out


def test_doctor_names_each_engine_and_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "doctor")
    by_kind = {str(engine["kind"]): engine for engine in found["engines"]}
    assert by_kind["ort-cpu"]["usable"]
    assert all(engine["usable"] or engine["missing"] for engine in by_kind.values())
    assert cli.main(["doctor"]) == 0
    assert "tensorrt-rtx" in capsys.readouterr().out


def test_validate_proves_and_writes_both_reports(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["--report", str(tmp_path / "r" / "report.json"), "--html", str(tmp_path / "r.html")]
    words = ["validate", str(bundle), "--engine", "ort-cpu", "--engine", "tensorrt-rtx"]
    assert cli.main([*words, *paths]) == 0
    shown = capsys.readouterr().out
    assert "judging the plan" in shown
    assert "proved: Yes." in shown
    assert attnport.Report.load(tmp_path / "r" / "report.json").verdict == "proved"
    assert (tmp_path / "r.html").is_file()


def test_validate_with_a_requirement_that_fails(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "require.yaml"
    file.write_text("{parity: [ort-cpu], kernels: {tensorrt-rtx: 1}}", "utf-8")
    assert cli.main(["validate", str(bundle), "--require", str(file)]) == 1


def test_validate_with_nothing_required(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "require.yaml"
    file.write_text("{parity: [], qkv: false, fusion: [], causal: false}", "utf-8")
    assert cli.main(["validate", str(bundle), "--require", str(file)]) == 3


def test_validate_refuses_a_damaged_plan(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    with (copy / "model.tensorrt-rtx.plan").open("ab") as plan:
        plan.write(b"x")
    assert cli.main(["validate", str(copy), "--engine", "tensorrt-rtx"]) == 2
    assert "damaged" in capsys.readouterr().err


def test_public_functions_make_the_module_from_its_source(bundle: Path) -> None:
    x = np.ones((2, 3, 32), np.float16)
    results: list[np.ndarray] = []
    for kind in ("torch-eager", "ort-cpu"):
        with attnport.open_engine(bundle, kind) as engine:
            results += engine.run({"x": x}).values()
    assert results[0].shape == results[1].shape == (2, 3, 32)
    report = attnport.prove(bundle, ["torch-eager"])
    assert any(f.engine == "torch-eager" and f.status == "passed" for f in report.findings)


def test_public_functions_say_when_the_module_cannot_be_made(tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "small")
    gone = replace(made, manifest=made.manifest.model_copy(update={"source": "gone.py:make"}))
    with pytest.raises(attnport.AttnportError, match=r"torch-eager runs the module of .*gone.py"):
        attnport.open_engine(gone, "torch-eager")
    with pytest.raises(attnport.AttnportError, match="or leave the torch engines out"):
        attnport.prove(gone, ["torch-eager"])
