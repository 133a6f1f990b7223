"""A bundle is opened whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.errors import BundleError, UsageError
from attnport.export.bundle import FORMAT_VERSION, MANIFEST, MODEL, Bundle


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the description, in place."""
    file = folder / MANIFEST
    content = json.loads(file.read_text("utf-8"))
    change(content)
    file.write_text(json.dumps(content), "utf-8")


def test_what_was_exported_is_what_is_opened(exported: Bundle) -> None:
    opened = Bundle.load(exported.path)
    assert opened == exported
    assert opened.hash == exported.hash
    assert opened.model_path.is_file()
    assert {name: axis.sizes() for name, axis in opened.axes.items()} == {
        "batch": (1, 2, 5),
        "seq": (1, 7, 16),
    }


def test_the_hash_is_that_of_graph_and_weights(exported: Bundle) -> None:
    manifest = exported.manifest
    for field in ("graph_sha256", "weights_sha256"):
        other = Bundle(exported.path, manifest.model_copy(update={field: "0" * 64}))
        assert other.hash != exported.hash
    renamed = Bundle(exported.path, manifest.model_copy(update={"name": "other"}))
    assert renamed.hash == exported.hash


def test_a_case_is_read_back(exported: Bundle) -> None:
    record = exported.manifest.cases[-1]
    case = exported.load_case(record.name)
    assert set(case.inputs) == {"x"}
    assert set(case.references) == {"output"}
    assert case.inputs["x"].dtype == np.float32
    assert case.references["output"].dtype == np.float64
    sizes = (record.sizes["batch"], record.sizes["seq"])
    assert case.inputs["x"].shape[:2] == case.references["output"].shape[:2] == sizes


def test_an_unknown_case_names_those_there_are(exported: Bundle) -> None:
    names = ", ".join(record.name for record in exported.manifest.cases)
    with pytest.raises(UsageError, match=f"no case 'nothing'; its cases: {names}"):
        exported.load_case("nothing")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a folder: give the folder that"):
        Bundle.load(tmp_path / "nothing")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"holds no bundle\.json"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("which", ["model", "case"])
def test_a_missing_file(bundle_folder: Path, which: str, verify: bool) -> None:
    name = MODEL if which == "model" else Bundle.load(bundle_folder).manifest.cases[0].file
    (bundle_folder / name).unlink()
    with pytest.raises(BundleError, match=f"lacks {name}: copy the whole folder"):
        Bundle.load(bundle_folder, verify=verify)


@pytest.mark.parametrize("which", ["model", "case"])
def test_a_changed_file(bundle_folder: Path, which: str) -> None:
    name = MODEL if which == "model" else Bundle.load(bundle_folder).manifest.cases[0].file
    file = bundle_folder / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BundleError, match="was changed after export"):
        Bundle.load(bundle_folder)
    assert Bundle.load(bundle_folder, verify=False).path == bundle_folder


def test_a_file_changed_after_it_was_opened_once(bundle_folder: Path) -> None:
    """What is remembered of a file is not believed when the file is another one."""
    Bundle.load(bundle_folder)
    file = bundle_folder / MODEL
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    before = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(BundleError, match="was changed after export"):
        Bundle.load(bundle_folder)


def test_a_newer_format(bundle_folder: Path) -> None:
    newer = FORMAT_VERSION + 1
    rewrite(bundle_folder, lambda content: content.update(format_version=newer, surprise=1))
    with pytest.raises(BundleError, match=f"of format {newer}.*upgrade attnport"):
        Bundle.load(bundle_folder)


SPOILED: dict[str, bytes] = {
    "not JSON": b"{",
    "not text": b"\xff\xfe\x00",
    "empty": b"",
    "a list": b"[]",
    "a number": b"3",
    "of other fields": b'{"format_version": 1, "name": "x"}',
    "a version that is none": b'{"format_version": "two"}',
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_description_that_is_none(bundle_folder: Path, how: str) -> None:
    (bundle_folder / MANIFEST).write_bytes(SPOILED[how])
    with pytest.raises(BundleError, match=r"bundle\.json is not a bundle's description"):
        Bundle.load(bundle_folder)


def test_an_unknown_field_is_no_bundle_of_this_format(bundle_folder: Path) -> None:
    rewrite(bundle_folder, lambda content: content.update(surprise=1))
    with pytest.raises(BundleError, match="is not a bundle's description"):
        Bundle.load(bundle_folder)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_truncated_safetensors(bundle_folder: Path, share: float) -> None:
    """Without the check of hashes, the reader of cases still says what is wrong."""
    bundle = Bundle.load(bundle_folder)
    record = bundle.manifest.cases[0]
    file = bundle_folder / record.file
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BundleError, match=r"\.safetensors cannot be read as safetensors"):
        bundle.load_case(record.name)


def test_a_case_that_vanished(bundle_folder: Path) -> None:
    bundle = Bundle.load(bundle_folder)
    record = bundle.manifest.cases[0]
    (bundle_folder / record.file).unlink()
    with pytest.raises(BundleError, match="cannot be read as safetensors"):
        bundle.load_case(record.name)
