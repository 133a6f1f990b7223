"""An EnginePlan on disk: `model.<kind>.plan`, with `.plan.json` and `.plan.log` beside it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from attnport.engines.plan import EnginePlan
from attnport.errors import BundleError
from attnport.export.digests import remembered_sha256

_BUILD_AGAIN = "build again with `attnport build`"


def plan_path(folder: Path, kind: str) -> Path:
    """Where the plan of a kind lies in a folder."""
    return folder / f"model.{kind}.plan"


def record_path(plan: Path) -> Path:
    """The EnginePlan of a plan file."""
    return plan.with_name(plan.name + ".json")


def lowered_path(plan: Path) -> Path:
    """The graph that a plan file was built from, where it is not `model.onnx`."""
    return plan.with_suffix(".onnx")


def log_path(plan: Path) -> Path:
    """The builder's messages of a plan file."""
    return plan.with_name(plan.name + ".log")


def save_record(plan: EnginePlan, file: Path, home: Path) -> None:
    """Writes a plan's record with its paths relative to `home`, so that the folder can move.

    Args:
        plan: The plan.
        file: Where to write it.
        home: The folder in which the record and the plan will lie.
    """
    moved = plan.model_copy(
        update={
            "path": plan.path and Path(plan.path.name),
            "log_path": plan.log_path and Path(plan.log_path.name),
            "bundle_path": Path(os.path.relpath(plan.bundle_path.resolve(), home.resolve())),
            "cached": False,
        }
    )
    file.write_text(moved.model_dump_json(indent=2), "utf-8")


def find_plan(path: Path, key: str, *, rehash: bool = False) -> EnginePlan | None:
    """The plan at a path, if it was built with that key and is whole.

    Args:
        path: The `.plan`.
        key: What it must have been built with; see `attnport.engines.plan_key`.
        rehash: Whether to read it again where it did not change since it was hashed last.
    """
    try:
        plan = load_plan(path, rehash=rehash)
    except BundleError:
        return None
    return plan if plan.key == key else None


def load_plan(path: str | Path, *, rehash: bool = False) -> EnginePlan:
    """Reads a plan's record back and checks that the plan is the one it was written for.

    Args:
        path: The `.plan`, or the `.plan.json` beside it.
        rehash: Whether to read the plan again where it did not change since it was hashed last.

    Raises:
        BundleError: If either is missing or damaged, or they do not belong together.
    """
    given = Path(path)
    file = given if given.suffix == ".json" else record_path(given)
    try:
        record = EnginePlan.model_validate_json(file.read_text("utf-8"))
    except FileNotFoundError:
        raise BundleError(
            f"{file} does not exist, so {given} is no plan: {_BUILD_AGAIN}"
        ) from None
    except (OSError, UnicodeDecodeError, ValidationError) as err:
        raise BundleError(f"{file} is not a plan's record: {_BUILD_AGAIN}") from err
    plan = _located(record, file.parent)
    if plan.path is not None:
        _check_hash(plan.path, plan.plan_sha256, rehash)
    return plan


def _located(record: EnginePlan, folder: Path) -> EnginePlan:
    bundle_path = Path(os.path.normpath(folder.resolve() / record.bundle_path))
    return record.model_copy(
        update={
            "path": record.path and folder / record.path.name,
            "log_path": record.log_path and folder / record.log_path.name,
            "bundle_path": bundle_path,
        }
    )


def _check_hash(path: Path, expected: str | None, rehash: bool) -> None:
    if not path.is_file():
        raise BundleError(f"the plan {path} is missing beside its record: {_BUILD_AGAIN}")
    if remembered_sha256(path, again=rehash) != expected:
        raise BundleError(
            f"the plan {path} is damaged or of another build (its hash is not the one in "
            f"{record_path(path).name}): {_BUILD_AGAIN}"
        )
