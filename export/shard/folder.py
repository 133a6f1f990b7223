"""The folder of a bundle that was split: written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attnport.errors import UsageError
from attnport.export.bundle import MANIFEST, MODEL, Bundle, file_sha256
from attnport.export.onnx_file import save_onnx
from attnport.export.passes import inspect_graph
from attnport.export.records import PassRecord, TensorSpec
from attnport.export.shard.collectives import with_collectives
from attnport.export.shard.files import RANK, REFERENCE, SHARD, TENSORRT_MODEL
from attnport.export.shard.held import Held
from attnport.export.shard.records import RankFolder, RankRecord
from attnport.export.shard.split_graph import RankModel


@contextmanager
def new_shard_folder(out: str | Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place when the block ends without an error.

    Raises:
        UsageError: If `out` is a file, or a folder that holds something else than a split bundle.
    """
    target = Path(out)
    if target.exists() and not _is_ours(target):
        what = "holds other files" if target.is_dir() else "is a file"
        raise UsageError(f"{target} {what}, which is not overwritten: give a new folder as --out")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent.resolve()))
    except OSError as err:
        raise UsageError(
            f"{target} cannot be written ({err.strerror}): give another --out"
        ) from err
    try:
        yield work
        work.chmod(0o755)
        aside = work.with_name(f"{work.name}-old")
        if target.exists():
            target.rename(aside)
        work.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_ours(target: Path) -> bool:
    return target.is_dir() and ((target / SHARD).is_file() or not any(target.iterdir()))


def write_rank(
    root: Path, bundle: Bundle, made: RankModel, rank: int, ranks: int, split: str
) -> RankFolder:
    """Writes the bundle of one rank.

    Args:
        root: The folder of all ranks.
        bundle: The bundle that is split.
        made: The rank's graph.
        rank: Which rank.
        ranks: Of how many.
        split: What ranks that belong together have in common.
    """
    folder = root / f"rank{rank}"
    folder.mkdir()
    save_onnx(made.model, folder / MODEL)
    record = RankRecord(
        rank=rank,
        ranks=ranks,
        bundle=bundle.hash,
        split=split,
        reductions=tuple(one.name for one in made.reductions),
    )
    copy = with_collectives((folder / MODEL).read_bytes(), ranks)
    (folder / TENSORRT_MODEL).write_bytes(copy)
    (folder / RANK).write_text(record.model_dump_json(indent=2) + "\n", "utf-8")
    files = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
    inspection = inspect_graph(made.model.graph, bundle.axes)
    notes = tuple(f"{one.of}: summed over {ranks} ranks as {one.name}" for one in made.reductions)
    shard = PassRecord(name="shard", changed=len(made.reductions), notes=notes)
    manifest = bundle.manifest.model_copy(
        update={
            "name": f"{bundle.name}-rank{rank}-of-{ranks}",
            "source": "",
            "form": "pattern",
            "opset": made.model.opset_imports[""],
            "inputs": tuple(_of_rank(spec, made.parts) for spec in bundle.manifest.inputs),
            "outputs": tuple(_of_rank(spec, made.parts) for spec in bundle.manifest.outputs),
            "graph_sha256": files[MODEL],
            "weights_sha256": files.get(f"{MODEL}.data", ""),
            "files": files,
            "passes": (*bundle.manifest.passes, shard),
            "attentions": inspection.attentions,
            "projection_groups": inspection.projection_groups,
            "cases": (),
            "cases_left_out": (),
        }
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", "utf-8")
    return RankFolder(
        folder=folder.name,
        graph_sha256=manifest.graph_sha256,
        weights_sha256=manifest.weights_sha256,
        bundle_sha256=file_sha256(folder / MANIFEST),
        weights=made.weights,
    )


def _of_rank(spec: TensorSpec, parts: Mapping[str, Held]) -> TensorSpec:
    part = parts.get(spec.name)
    if part is None:
        return spec
    shape = list(spec.shape)
    shape[part.axis] = part.count
    return spec.model_copy(update={"shape": tuple(shape)})


def write_reference(root: Path, bundle: Bundle) -> None:
    """Copies what parity needs: the bundle's description and its cases, without the graph."""
    folder = root / REFERENCE
    folder.mkdir()
    cases = {record.file for record in bundle.manifest.cases}
    kept = {name: digest for name, digest in bundle.manifest.files.items() if name in cases}
    for name in kept:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / name, folder / name)
    manifest = bundle.manifest.model_copy(update={"files": kept})
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", "utf-8")
