"""What is in the folder of a split bundle, and that its parts are the right ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.shard.lockstep import Lockstep
from tests.shard.making import prove_split

from attnport.engines.build import build_engine
from attnport.engines.open import open_engine
from attnport.engines.sharded.messages import Answer
from attnport.engines.sharded.parts import joined_outputs
from attnport.engines.sharded.sharded_engine import require_agreement
from attnport.errors import BundleError, EngineUnavailableError, InternalError, UsageError
from attnport.export.bundle import Bundle
from attnport.export.onnx_file import onnx_fault
from attnport.export.shard.records import Part
from attnport.export.shard.shard_bundle import shard_bundle
from attnport.export.shard.sharded import ShardedBundle
from attnport.validate.parity import check_parity


@pytest.mark.parametrize("ranks", [2, 4])
def test_half_precision(half_block: Bundle, ranks: int, tmp_path: Path) -> None:
    masks = {record.mask for record in half_block.manifest.cases}
    assert {"dead-row", "random", "right-padding", "left-padding"} <= masks
    prove_split(half_block, ranks, tmp_path / "split")


def test_bytes_are_divided(block: Bundle, tmp_path: Path) -> None:
    manifest = shard_bundle(block, 4, tmp_path / "split")
    for one in manifest.ranks[1:]:
        assert one.weights.repeated < manifest.weights.repeated + 1
        assert one.weights.split * 4 <= manifest.weights.split
    assert [one.of for one in manifest.reductions] == ["attn0", "feed_forward0"]
    (mask,) = manifest.split_inputs
    assert (mask.name, mask.positions) == ("mask", ((0,), (1,), (2,), (3,)))


def test_bias_of_a_row_split_matrix_is_on_rank_0_alone(block_in_two: Path) -> None:
    sharded = ShardedBundle.load(block_in_two)
    added = []
    for rank in (0, 1):
        model = onnx.load(sharded.rank(rank).model_path)
        made_by = {name: node for node in model.graph.node for name in node.output}
        sums = [node for node in model.graph.node if node.op_type == "AllReduce"]
        added.append([made_by[node.input[0]].op_type for node in sums])
    assert added == [["Add", "Add"], ["MatMul", "MatMul"]]


def test_every_rank_gives_the_same_bits(block: Bundle, block_in_two: Path) -> None:
    engine = Lockstep(block_in_two)
    for record in block.manifest.cases:
        first, second = engine.of_ranks(block.load_case(record.name).inputs)
        assert np.array_equal(first["output"], second["output"], equal_nan=True)


def test_a_rank_in_the_place_of_another_gives_a_wrong_result(
    block: Bundle, block_in_two: Path
) -> None:
    """Parity sees it: what is summed is rank 0 twice."""
    engine = Lockstep(block_in_two)
    engine.sessions[1] = engine.sessions[0]
    statuses = [
        finding.status
        for record in block.manifest.cases
        for finding in check_parity(engine, block, record.name)
    ]
    assert "failed" in statuses


def test_a_rank_is_a_file_that_onnx_takes(block_in_two: Path) -> None:
    for rank in (0, 1):
        assert onnx_fault(block_in_two / f"rank{rank}" / "model.onnx") is None


@pytest.mark.parametrize("kind", ["ort-cpu", "ort-cuda"])
def test_a_rank_alone_is_refused(block_in_two: Path, kind: str) -> None:
    rank = Bundle.load(block_in_two / "rank1")
    with pytest.raises(UsageError, match="is for 2 ranks, and computes nothing without"):
        open_engine(rank, kind)
    with pytest.raises(UsageError, match="is for 2 ranks"):
        build_engine(rank, "ort-cpu")


def test_a_rank_is_not_split_again(block_in_two: Path, tmp_path: Path) -> None:
    rank = Bundle.load(block_in_two / "rank1")
    with pytest.raises(UsageError, match="is a rank of a bundle that was split already"):
        shard_bundle(rank, 2, tmp_path / "again")


@pytest.mark.parametrize("ranks", [-1, 0, 1, 65])
def test_numbers_of_ranks(block: Bundle, ranks: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give 2 to 64"):
        shard_bundle(block, ranks, tmp_path / "split")


def test_other_files_are_not_overwritten(block: Bundle, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        shard_bundle(block, 2, tmp_path)
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_an_earlier_split_is_replaced(block: Bundle, tmp_path: Path) -> None:
    out = tmp_path / "split"
    shard_bundle(block, 4, out)
    shard_bundle(block, 2, out)
    assert sorted(file.name for file in out.iterdir()) == [
        "rank0", "rank1", "reference", "shard.json",
    ]  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["split"]


def test_a_missing_rank(block_in_two: Path, tmp_path: Path) -> None:
    folder = _copy(block_in_two, tmp_path)
    shutil.rmtree(folder / "rank1")
    with pytest.raises(BundleError, match="rank 1 of 2 is missing"):
        ShardedBundle.load(folder)


def test_ranks_of_different_bundles(
    half_block: Bundle, block_in_two: Path, tmp_path: Path
) -> None:
    folder = _copy(block_in_two, tmp_path)
    shard_bundle(half_block, 2, tmp_path / "other")
    shutil.rmtree(folder / "rank1")
    (tmp_path / "other" / "rank1").rename(folder / "rank1")
    with pytest.raises(BundleError, match="of another bundle or another split"):
        ShardedBundle.load(folder)


def test_ranks_of_different_numbers(block: Bundle, block_in_two: Path, tmp_path: Path) -> None:
    folder = _copy(block_in_two, tmp_path)
    shard_bundle(block, 4, tmp_path / "other")
    shutil.rmtree(folder / "rank1")
    (tmp_path / "other" / "rank1").rename(folder / "rank1")
    with pytest.raises(BundleError, match="rank 1 of 4"):
        ShardedBundle.load(folder)


def test_ranks_in_each_others_place(block_in_two: Path, tmp_path: Path) -> None:
    folder = _copy(block_in_two, tmp_path)
    (folder / "rank0").rename(folder / "rank2")
    (folder / "rank1").rename(folder / "rank0")
    (folder / "rank2").rename(folder / "rank1")
    with pytest.raises(BundleError, match="holds rank 1"):
        ShardedBundle.load(folder)


def test_changed_weights(block_in_two: Path, tmp_path: Path) -> None:
    folder = _copy(block_in_two, tmp_path)
    graph = folder / "rank1" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\0")
    with pytest.raises(BundleError, match="was changed after export"):
        ShardedBundle.load(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 99}'])
def test_a_manifest_that_is_none(block_in_two: Path, tmp_path: Path, content: str) -> None:
    folder = _copy(block_in_two, tmp_path)
    (folder / "shard.json").write_text(content)
    with pytest.raises(BundleError, match=r"shard\.json (cannot be read|is of format 99)"):
        ShardedBundle.load(folder)


def _copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy"))


def test_ranks_that_disagree() -> None:
    answers = [Answer(rank, {}, {"y": "same", "z": f"{rank // 2}"}) for rank in range(4)]
    require_agreement(answers[:2])
    with pytest.raises(EngineUnavailableError, match="rank 2 gives another z than rank 0"):
        require_agreement(answers)


def test_parts_that_nobody_gives(block_in_two: Path) -> None:
    manifest = ShardedBundle.load(block_in_two).manifest
    part = Part(name="output", axis=1, positions=((0,), (2,)))
    lacking = manifest.model_copy(update={"split_outputs": (part,)})
    given = [{"output": np.zeros((1, 1, 32), np.float32)} for _ in range(2)]
    with pytest.raises(InternalError, match="no rank gives all of output"):
        joined_outputs(lacking, given)
