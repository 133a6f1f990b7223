"""A bundle: the folder that travels from the machine that exports to the one that proves.

model.onnx, model.onnx.data   the graph, and its weights over 1 MiB
bundle.json                   where it came from, and the hash of everything in the folder
cases/*.safetensors           inputs, with the float64 result of the module
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from attnport.axes import Axis
from attnport.errors import BundleError, UsageError
from attnport.export.arrays import load_arrays
from attnport.export.digests import file_sha256 as file_sha256
from attnport.export.digests import remembered_sha256
from attnport.export.records import CaseRecord, Manifest

FORMAT_VERSION = 2
MANIFEST = "bundle.json"
MODEL = "model.onnx"


@dataclass(frozen=True)
class Case:
    """A case read back from disk.

    Attributes:
        record: What `bundle.json` says of it.
        inputs: The feeds, in the bundle's dtypes.
        references: For each output the float64 result.
    """

    record: CaseRecord
    inputs: Mapping[str, np.ndarray]
    references: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Bundle:
    """An exported model with what is needed to prove it.

    Attributes:
        path: The folder.
        manifest: The content of its `bundle.json`.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True, rehash: bool = False) -> Bundle:
        """Opens a bundle folder and, unless told otherwise, checks the hash of every file.

        Args:
            path: The folder.
            verify: Whether to compare hashes at all.
            rehash: Whether to read files again that did not change since they were hashed last, by
                their size, modification time and inode.

        Raises:
            BundleError: If the folder is not a bundle, lacks a file, was changed after export, or
                was written in a newer format.
        """
        folder = Path(path)
        manifest = _read_manifest(folder)
        for name, expected in manifest.files.items():
            file = folder / name
            if not file.is_file():
                raise BundleError(
                    f"bundle {folder} lacks {name}: copy the whole folder, or export again"
                )
            if verify and remembered_sha256(file, again=rehash) != expected:
                raise BundleError(
                    f"{file} was changed after export (its hash is not the one in {MANIFEST}): "
                    "export again"
                )
        return cls(folder, manifest)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def dtype(self) -> str:
        return self.manifest.dtype

    @property
    def model_path(self) -> Path:
        return self.path / MODEL

    @property
    def axes(self) -> dict[str, Axis]:
        terms = self.manifest.derived_axes
        return {
            name: Axis(name, *sizes, terms.get(name, ()))
            for name, sizes in self.manifest.axes.items()
        }

    @property
    def hash(self) -> str:
        """Hash of graph and weights: what a Finding names the bundle by."""
        text = self.manifest.graph_sha256 + self.manifest.weights_sha256
        return hashlib.sha256(text.encode()).hexdigest()

    def load_case(self, name: str) -> Case:
        """Reads one case.

        Raises:
            UsageError: If the bundle has no case of that name.
        """
        for record in self.manifest.cases:
            if record.name == name:
                arrays = load_arrays(self.path / record.file)
                return Case(
                    record,
                    _with_prefix(arrays, "input."),
                    _with_prefix(arrays, "reference."),
                )
        known = ", ".join(record.name for record in self.manifest.cases) or "none"
        raise UsageError(f"bundle {self.path} has no case {name!r}; its cases: {known}")


def _with_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _read_manifest(folder: Path) -> Manifest:
    file = folder / MANIFEST
    if not file.is_file():
        if folder.suffix == ".onnx":
            inside = (folder.parent / MANIFEST).is_file()
            raise BundleError(
                f"{folder} is a file of a bundle: give its folder, {folder.parent}"
                if inside
                else f"{folder} is no bundle, and has no module to be compared with: export the "
                "module, or look at the file with `attnport inspect`"
            )
        what = "is not a folder" if not folder.is_dir() else f"holds no {MANIFEST}"
        raise BundleError(
            f"{folder} {what}: give the folder that `attnport export … --out {folder}` wrote"
        )
    try:
        content = json.loads(file.read_text("utf-8"))
        version = content.get("format_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise BundleError(
                f"{file} is of format {version}, and this attnport reads up to {FORMAT_VERSION}: "
                "upgrade attnport, or export again with this one"
            )
        return Manifest.model_validate(content)
    except (json.JSONDecodeError, UnicodeDecodeError, ValidationError) as err:
        raise BundleError(f"{file} is not a bundle's description: export again ({err})") from err
