"""The commands, from a bundle to the verdict on all its ranks, and the ranks' plans."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.shard.making import make_bundle
from tests.shard.modules import MaskOfHeads

from attnport import cli
from attnport.engines.build import build_engine
from attnport.engines.plan_file import load_plan, plan_path, record_path, save_record
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.shard.shard_bundle import shard_bundle
from attnport.export.shard.sharded import ShardedBundle
from attnport.models import EncoderBlock
from attnport.validate.report import Report
from attnport.validate.requirements import Requirements
from attnport.validate.sharded import SUMS, prove_sharded


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The reference encoder's block in float16, with heads that TensorRT fuses."""
    import torch

    from attnport.export.export_module import export_module

    torch.manual_seed(0)
    return export_module(
        EncoderBlock(64, 4),
        (torch.randn(2, 5, 64), torch.ones(2, 1, 1, 5, dtype=torch.bool)),
        tmp_path_factory.mktemp("encoder") / "whole",
        dynamic_shapes=({0: "batch", 1: "seq"}, {0: "batch", 3: "seq"}),
        axes={"batch": (1, 2, 3), "seq": (1, 8, 16)},
        dtype="float16",
        name="encoder",
    )


@pytest.fixture(scope="module")
def split(encoder: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Split over 2 ranks by the command, with a plan of each."""
    out = tmp_path_factory.mktemp("encoder") / "split"
    asked = ["shard", str(encoder.path), "-n", "2", "-o", str(out), "-e", "tensorrt-rtx"]
    assert cli.main(asked) == 0
    return out


def test_validate_runs_the_ranks_and_reads_their_plans(
    encoder: Bundle, split: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert cli.main(["validate", str(split), "--report", str(report)]) == 0
    found = Report.load(report).findings
    parity = [one for one in found if one.check == "parity"]
    assert {one.engine for one in parity} == {"ort-cpu-2-ranks"}
    assert {one.case for one in parity} == {r.name for r in encoder.manifest.cases} | {"coverage"}
    assert {one.bundle for one in parity} == {encoder.hash}
    sums = [one for one in found if one.case == SUMS]
    assert [(one.status, one.numbers["collectives"]) for one in sums] == [("passed", 2)] * 2
    assert all("all_reduce" in one.message for one in sums)
    fused = [one for one in found if one.check == "fusion" and one.engine == "tensorrt-rtx"]
    assert [one.status for one in fused] == ["passed", "passed"]
    assert {one.model for one in fused} == {"encoder-rank0-of-2", "encoder-rank1-of-2"}


def test_a_plan_without_a_collective_fails(split: Path, tmp_path: Path) -> None:
    """It would give a part for the whole."""
    folder = Path(shutil.copytree(split, tmp_path / "copy"))
    path = plan_path(folder / "rank1", "tensorrt-rtx")
    plan = load_plan(path)
    assert plan.fusion is not None
    layers = tuple(one for one in plan.fusion.layers if "feed_forward0" not in one.name)
    fusion = plan.fusion.model_copy(update={"layers": layers})
    save_record(plan.model_copy(update={"fusion": fusion}), record_path(path), home=path.parent)
    report = prove_sharded(ShardedBundle.load(folder), ["tensorrt-rtx"], require=_PLANS)
    failed = [one for one in report.findings if one.status == "failed"]
    assert [(one.model, one.case) for one in failed] == [("encoder-rank1-of-2", SUMS)]
    assert "no collective for /feed_forward0/all_reduce" in failed[0].message
    assert report.exit_code == 1


def test_a_plan_that_is_not_there_is_not_proved(split: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(split, tmp_path / "copy"))
    plan_path(folder / "rank0", "tensorrt-rtx").unlink()
    report = prove_sharded(ShardedBundle.load(folder), ["tensorrt-rtx"], require=_PLANS)
    assert report.exit_code == 3
    missing = [one for one in report.findings if one.status == "not run" and one.required]
    assert any("rank 0 has no plan" in one.message for one in missing)


def test_the_tensorrt_copy_is_one_that_is_built(split: Path) -> None:
    import onnx

    model = onnx.load(split / "rank1" / "model.tensorrt.onnx", load_external_data=False)
    (first, second) = (node for node in model.graph.node if node.op_type == "DistCollective")
    assert first.name == "/attn0/all_reduce"
    said = {one.name: onnx.helper.get_attribute_value(one) for one in second.attribute}
    assert said["collective_operation"] == b"all_reduce"
    assert (said["reduce_op"], said["nb_rank"], said["groups"]) == (b"sum", 2, [])
    assert {one.domain for one in model.opset_import} == {""}


def test_a_plan_on_4_ranks(tmp_path: Path) -> None:
    bundle = make_bundle(MaskOfHeads(), tmp_path / "whole", masked=True, dtype="float16", cases=1)
    shard_bundle(bundle, 4, tmp_path / "split")
    plan = build_engine(Bundle.load(tmp_path / "split" / "rank3"), "tensorrt-rtx")
    assert plan.fusion is not None
    assert [one.type for one in plan.fusion.layers].count("comm_allreduce") == 1


REFUSED = [
    (["shard", "{whole}", "--ranks", "3", "--out", "{tmp}/s"], "give --ranks 2, 4"),
    (["shard", "{whole}", "--ranks", "1", "--out", "{tmp}/s"], "give 2 to 64"),
    (["shard", "{split}", "--ranks", "2", "--out", "{tmp}/s"], "holds no bundle.json"),
    (["shard", "{whole}", "--ranks", "2", "--out", "{whole}"], "holds other files"),
    (
        ["shard", "{whole}", "-n", "2", "-o", "{tmp}/s", "-e", "ort-cpu"],
        "builds no plan of a rank",
    ),
    (["validate", "{split}", "--engine", "torch-sdpa"], "runs no split bundle: use ort-cpu"),
    (["validate", "{split}", "--latency"], "of which --latency is not known"),
    (["validate", "{split}", "--further"], "of which --further is not known"),
    (["validate", "{whole}", "--rank-timeout", "3"], "goes with a split bundle"),
    (["validate", "{split}", "--rank-timeout", "0"], "give more than 0"),
    (["validate", "{split}/rank0", "-e", "ort-cpu"], "computes nothing without the others"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refused(
    words: list[str],
    said: str,
    encoder: Bundle,
    split: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"whole": encoder.path, "split": split, "tmp": tmp_path}
    code = cli.main([word.format(**places) for word in words])
    shown = capsys.readouterr()
    assert code in (1, 2)
    assert said in shown.out + shown.err
    assert "Traceback" not in shown.out + shown.err
    assert not (tmp_path / "s").exists()


def test_kinds_that_run_no_ranks(split: Path) -> None:
    with pytest.raises(UsageError, match="runs no split bundle"):
        prove_sharded(ShardedBundle.load(split), ["ort-tensorrt"])


_PLANS = Requirements(parity=(), fusion=("tensorrt-rtx",))
