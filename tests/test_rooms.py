"""The house: who may import whom, and the links through which the rooms are found."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnport import _require_linked_rooms

ROOT = Path(__file__).parent.parent
ROOMS = ("models", "export", "engines", "validate", "serve")
ANYONE = {"errors", "axes", "_version"}
MAY_IMPORT = {
    "models": set(),
    "export": set(),
    "engines": {"export"},
    "validate": {"engines", "export"},
    "serve": {"engines", "export", "validate"},
}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            assert node.module is not None
            # `from attnport import models` names the room in what is imported.
            yield node.module
            if node.module == "attnport":
                yield from (f"attnport.{alias.name}" for alias in node.names)


def _files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_what_it_may(room: str) -> None:
    for file in _files(room):
        allowed = ANYONE | MAY_IMPORT[room] | {room}
        if file == ROOT / "export" / "__main__.py":
            allowed = {"cli"}
        for name in _imports(file):
            package, _, inside = name.partition(".")
            if package == "attnport" and inside:
                assert inside.split(".")[0] in allowed, f"{file} imports {name}"


def test_nobody_imports_a_room_by_its_folder() -> None:
    for file in _files(*ROOMS, "src/attnport", "tests", "examples", "benchmarks"):
        for name in _imports(file):
            assert name.split(".")[0] not in ROOMS, f"{file} imports {name}"


def test_no_module_bears_the_name_of_a_dependency() -> None:
    taken = {"onnx", "torch", "numpy", "scipy", "typer", "rich", "yaml", "pydantic", "tensorrt"}
    assert not [file for file in _files(*ROOMS, "src/attnport") if file.stem in taken]


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_a_relative_link(room: str) -> None:
    link = ROOT / "src" / "attnport" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{room}"


def test_checkout_with_text_files_for_links_says_so(tmp_path: Path) -> None:
    for room in ROOMS:
        (tmp_path / room).write_text(f"../../{room}", "utf-8")
    with pytest.raises(
        ImportError, match=r"models, export, .* as text files.*core\.symlinks=true"
    ):
        _require_linked_rooms(tmp_path)


def test_checkout_with_links_passes(tmp_path: Path) -> None:
    for room in ROOMS:
        (tmp_path / room).symlink_to(ROOT / room)
    _require_linked_rooms(tmp_path)


def test_wheel_holds_every_file_that_is_no_module() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    packed = {
        file
        for package, patterns in setup["package-data"].items()
        for pattern in patterns
        for file in ROOT.joinpath("src", *package.split(".")).glob(pattern)
    }
    for room in ROOMS:
        for file in (ROOT / "src" / "attnport" / room).glob("**/*"):
            if file.is_file() and file.suffix not in {".py", ".pyc"}:
                assert file in packed, f"{file} is not in package-data of pyproject.toml"
