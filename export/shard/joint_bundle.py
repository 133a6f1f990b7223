"""The bundle of the one graph for all ranks, beside theirs: `together/`."""

from __future__ import annotations

import shutil

import onnx

from attnport.export.bundle import MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.onnx_file import EXTERNAL_BYTES
from attnport.export.records import PassRecord
from attnport.export.shard.collectives import with_collectives
from attnport.export.shard.files import RANK, TENSORRT_MODEL, TOGETHER
from attnport.export.shard.joint_model import JointModel
from attnport.export.shard.records import RankRecord
from attnport.export.shard.sharded import ShardedBundle


def write_joint_bundle(sharded: ShardedBundle) -> Bundle:
    """Writes one graph that every rank loads, as Triton's TensorRT backend wants it.

    Args:
        sharded: The split bundle; the new one goes into its folder.

    Raises:
        GraphError: If the ranks differ by more than their weights, or outputs are split.
    """
    models = [onnx.load(sharded.rank(rank).model_path) for rank in range(sharded.count)]
    model = JointModel(models, sharded.manifest).write()
    folder = sharded.path / TOGETHER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    onnx.save_model(
        model, folder / MODEL, save_as_external_data=True, location=f"{MODEL}.data",
        size_threshold=EXTERNAL_BYTES,
    )  # fmt: skip
    content = with_collectives((folder / MODEL).read_bytes(), sharded.count)
    (folder / TENSORRT_MODEL).write_bytes(content)
    manifest = sharded.manifest
    record = RankRecord(
        rank=None,
        ranks=sharded.count,
        bundle=manifest.bundle,
        split=manifest.split,
        reductions=tuple(one.name for one in manifest.reductions),
    )
    (folder / RANK).write_text(record.model_dump_json(indent=2) + "\n", "utf-8")
    files = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
    first = sharded.rank(0).manifest
    note = f"the parts of {sharded.count} ranks, of which each takes its own"
    described = first.model_copy(
        update={
            "name": f"{manifest.name}-on-{sharded.count}",
            "inputs": manifest.inputs,
            "outputs": manifest.outputs,
            "graph_sha256": files[MODEL],
            "weights_sha256": files.get(f"{MODEL}.data", ""),
            "files": files,
            "passes": (*first.passes, PassRecord(name="joint", changed=1, notes=(note,))),
        }
    )
    (folder / MANIFEST).write_text(described.model_dump_json(indent=2) + "\n", "utf-8")
    return Bundle.load(folder)
