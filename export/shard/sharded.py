"""A bundle that was split, read back: its ranks must belong together, and none may be missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from attnport.errors import BundleError
from attnport.export.bundle import MANIFEST, Bundle, file_sha256
from attnport.export.records import Record
from attnport.export.shard.files import RANK, SHARD
from attnport.export.shard.records import FORMAT_VERSION, RankRecord, ShardManifest

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True)
class ShardedBundle:
    """A folder that `attnport shard` wrote.

    Attributes:
        path: The folder.
        manifest: The content of its `shard.json`.
    """

    path: Path
    manifest: ShardManifest

    @classmethod
    def load(cls, path: str | Path, *, only: int | None = None) -> ShardedBundle:
        """Opens the folder and checks that its ranks are those of one split.

        Args:
            path: The folder.
            only: The one rank to look at, on a machine that runs no other; None for all.

        Raises:
            BundleError: If it is no such folder, a rank is missing, or one is of another bundle,
                another split or another place.
        """
        folder = Path(path)
        if not is_sharded(folder):
            raise BundleError(
                f"{folder} holds no {SHARD}: give the folder that `attnport shard … --out` wrote"
            )
        manifest = _read(folder / SHARD, ShardManifest)
        loaded = cls(folder, manifest)
        for rank in range(len(manifest.ranks)) if only is None else [only]:
            loaded.require_rank(rank)
        return loaded

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self.manifest.ranks)

    def reference(self) -> Bundle:
        """The bundle that was split, without its graph: what it takes, and its cases."""
        return Bundle.load(self.path / self.manifest.reference)

    def rank(self, rank: int) -> Bundle:
        """One rank's bundle."""
        return Bundle.load(self.path / self.manifest.ranks[rank].folder)

    def require_rank(self, rank: int) -> None:
        """Checks that a rank is there, and is the one of this split.

        Raises:
            BundleError: If not; says what is there instead.
        """
        wanted = self.manifest.ranks[rank]
        folder = self.path / wanted.folder
        if not (folder / RANK).is_file():
            raise BundleError(
                f"rank {rank} of {self.count} is missing: {folder} holds no {RANK}; copy the whole "
                "folder, or split the bundle again"
            )
        found = _read(folder / RANK, RankRecord)
        if found.split != self.manifest.split:
            raise BundleError(
                f"{folder} is of another bundle or another split (rank {found.rank} of "
                f"{found.ranks}, of {found.bundle[:12]}) than {self.path / SHARD} (rank {rank} of "
                f"{self.count}, of {self.manifest.bundle[:12]}): ranks cannot be mixed, so split "
                "again"
            )
        if found.rank != rank:
            raise BundleError(f"{folder} holds rank {found.rank}: split the bundle again")
        if file_sha256(folder / MANIFEST) != wanted.bundle_sha256:
            raise BundleError(f"{folder / MANIFEST} was changed after the split: split again")
        self.rank(rank)


def is_sharded(path: Path) -> bool:
    """Whether a folder holds a bundle that was split."""
    return (path / SHARD).is_file()


def _read(file: Path, kind: type[_R]) -> _R:
    try:
        content = json.loads(file.read_text("utf-8"))
        version = content.get("format_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise BundleError(
                f"{file} is of format {version}, and this attnport reads up to {FORMAT_VERSION}: "
                "upgrade attnport, or split again with this one"
            )
        return kind.model_validate(content)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, ValidationError) as err:
        raise BundleError(f"{file} cannot be read: split the bundle again ({err})") from err
