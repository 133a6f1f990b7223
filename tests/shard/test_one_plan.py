"""One graph for all ranks: its numbers, its plan, and Triton's configuration of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tests.serve.test_triton_repository import SCHEMA
from tests.shard import modules
from tests.shard.lockstep import in_lockstep
from tests.shard.making import make_bundle

from attnport import cli
from attnport.engines.build import build_engine
from attnport.engines.open import open_engine
from attnport.engines.plan import EnginePlan
from attnport.engines.plan_file import record_path, save_record
from attnport.engines.sharded.plan_layers import layers_of_sums
from attnport.engines.sharded.rank_session import RankSession
from attnport.errors import BundleError, GraphError, UsageError
from attnport.export.bundle import Bundle, file_sha256
from attnport.export.shard.joint_bundle import write_joint_bundle
from attnport.export.shard.joint_model import with_rank
from attnport.export.shard.shard_bundle import shard_bundle
from attnport.export.shard.sharded import ShardedBundle
from attnport.serve.open_models import Source
from attnport.serve.repository.config_from_bundle import RepositoryOptions
from attnport.serve.repository.write import write_repository


@pytest.fixture
def split(half_block: Bundle, tmp_path: Path) -> ShardedBundle:
    shard_bundle(half_block, 2, tmp_path / "split")
    return ShardedBundle.load(tmp_path / "split")


def test_numbers(half_block: Bundle, split: ShardedBundle, tmp_path: Path) -> None:
    """Each rank, told its number, gives what the rank with its own graph gives, bit for bit."""
    joint = write_joint_bundle(split)
    sessions = [_as_rank(joint, rank, tmp_path / f"as{rank}") for rank in range(2)]
    alone = [RankSession(split.rank(rank), threads=1) for rank in range(2)]
    for record in half_block.manifest.cases:
        inputs = half_block.load_case(record.name).inputs
        found = in_lockstep([session.steps(inputs) for session in sessions])
        parts = [{**inputs, "mask": inputs["mask"][:, 2 * r : 2 * r + 2]} for r in range(2)]
        wanted = in_lockstep([s.steps(part) for s, part in zip(alone, parts, strict=True)])
        for one, other in zip(found, wanted, strict=True):
            assert np.array_equal(one["output"], other["output"], equal_nan=True)


def test_plan_without_a_gpu(split: ShardedBundle) -> None:
    joint = write_joint_bundle(split)
    plan = build_engine(joint, "tensorrt-rtx")
    assert plan.fusion is not None
    names = [one.name for one in split.manifest.reductions]
    assert sorted(layers_of_sums(plan.fusion.layers, names)) == sorted(names)
    with pytest.raises(UsageError, match="is for 2 ranks, and computes nothing without"):
        open_engine(joint, "ort-cpu")


def test_caches_cannot_be_served_so(tmp_path: Path) -> None:
    whole = make_bundle(modules.WeightsToo(), tmp_path / "whole", cases=1)
    shard_bundle(whole, 2, tmp_path / "split")
    with pytest.raises(GraphError, match="output_1 is split over the ranks"):
        write_joint_bundle(ShardedBundle.load(tmp_path / "split"))


def test_parts_of_different_sizes(tmp_path: Path) -> None:
    whole = make_bundle(modules.Parallel(), tmp_path / "whole", cases=1)
    shard_bundle(whole, 4, tmp_path / "split")
    with pytest.raises(GraphError, match="parts of different sizes"):
        write_joint_bundle(ShardedBundle.load(tmp_path / "split"))


def test_triton_config(split: ShardedBundle, tmp_path: Path) -> None:
    _pretend_plan(write_joint_bundle(split))
    (folder,) = _written(split.path, tmp_path, backend="tensorrt")
    text = (folder / "config.pbtxt").read_text("utf-8")
    assert "not run by attnport" in text
    config = text_format.Parse(text, SCHEMA.ModelConfig())
    (group,) = config.instance_group
    assert (group.kind, group.count) == (SCHEMA.ModelInstanceGroup.KIND_MODEL, 1)
    assert config.parameters["enable_multi_device"].string_value == "true"
    assert config.parameters["multi_device_gpus"].string_value == "0,1"
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[1].dims) == [-1, modules.HEADS, -1, -1]
    assert (folder / "1" / "model.plan").read_bytes() == b"a plan"


def test_triton_refuses(split: ShardedBundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="loads one plan on all devices"):
        _written(split.path, tmp_path, backend="tensorrt")
    _pretend_plan(write_joint_bundle(split))
    with pytest.raises(UsageError, match="give --backend tensorrt"):
        _written(split.path, tmp_path)
    with pytest.raises(UsageError, match="give --instances 1"):
        _written(split.path, tmp_path, backend="tensorrt", instances=2)
    with pytest.raises(UsageError, match="is one rank of a split bundle"):
        _written(split.path / "rank0", tmp_path, backend="tensorrt")
    with pytest.raises(UsageError, match="runs on a GPU"):
        _written(split.path, tmp_path, backend="tensorrt", device="cpu")


def test_commands(half_block: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "split"
    asked = ["shard", str(half_block.path), "--ranks", "2", "--out", str(out), "--one-plan"]
    assert cli.main(asked) == 0
    assert "together: one graph for all ranks" in capsys.readouterr().out
    _pretend_plan(Bundle.load(out / "together"))
    repository = str(tmp_path / "models")
    assert cli.main(["triton", f"block={out}", "--out", repository, "--backend", "tensorrt"]) == 0
    assert "not run by attnport" in capsys.readouterr().err


def _written(path: Path, tmp_path: Path, **options: object) -> list[Path]:
    asked = RepositoryOptions(**options)  # type: ignore[arg-type]
    return write_repository([Source(path, name="block")], tmp_path / "repository", asked)


def _as_rank(joint: Bundle, rank: int, folder: Path) -> RankSession:
    shutil.copytree(joint.path, folder)
    model = with_rank(onnx.load(joint.model_path, load_external_data=False), rank)
    inferred = onnx.shape_inference.infer_shapes(model)  # picked parts cross the cuts
    (folder / "model.onnx").write_bytes(inferred.SerializeToString())
    return RankSession(Bundle(folder, joint.manifest), threads=1)


def _pretend_plan(bundle: Bundle) -> None:
    """A file where TensorRT's plan would lie: only its place and record matter here."""
    file = bundle.path / "model.tensorrt.plan"
    file.write_bytes(b"a plan")
    plan = EnginePlan(
        kind="tensorrt",
        model=bundle.name,
        bundle_path=bundle.path,
        bundle_hash=bundle.hash,
        dtype=bundle.dtype,
        path=file,
        plan_sha256=file_sha256(file),
        versions={},
        build_seconds=0.0,
    )
    save_record(plan, record_path(file), home=file.parent)
