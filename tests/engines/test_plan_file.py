"""A plan read back is the plan that was built, or an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport.engines.build import build_engine
from attnport.engines.kinds import KINDS
from attnport.engines.open import _plan_of
from attnport.engines.plan import EnginePlan
from attnport.engines.plan_file import load_plan
from attnport.errors import BundleError, UsageError
from attnport.export.bundle import Bundle

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
BundleMaker = Callable[..., Bundle]
Built = tuple[Bundle, EnginePlan, Path]


@pytest.fixture
def built(attention_bundle: BundleMaker) -> Built:
    bundle = attention_bundle()
    plan = build_engine(bundle, "tensorrt-rtx")
    assert plan.path is not None
    return bundle, plan, plan.path


def test_it_reads_back(built: Built) -> None:
    _, plan, path = built
    assert load_plan(path) == plan
    assert load_plan(path.with_name(path.name + ".json")) == plan


def test_a_folder_that_moved(built: Built, tmp_path: Path) -> None:
    bundle, _, path = built
    moved = Path(shutil.move(bundle.path, tmp_path / "elsewhere"))
    plan = load_plan(moved / path.name)
    assert (plan.path, plan.bundle_path) == (moved / path.name, moved)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plan: plan.write_bytes(plan.read_bytes()[:-1]), "is damaged or of another build"),
        (lambda plan: plan.unlink(), "is missing beside its record"),
        (lambda plan: _record(plan).unlink(), "does not exist"),
        (lambda plan: _record(plan).write_text("{}"), "is not a plan's record"),
        (lambda plan: _record(plan).write_bytes(b"\xff\x00"), "is not a plan's record"),
    ],
)
def test_damage_is_found(built: Built, damage: Callable[[Path], object], message: str) -> None:
    _, _, path = built
    damage(path)
    with pytest.raises(BundleError, match=rf"{message}.*build again"):
        load_plan(path)


def _record(plan: Path) -> Path:
    return plan.with_name(plan.name + ".json")


def test_a_plan_of_another_kind_or_export_is_not_opened(built: Built) -> None:
    bundle, plan, _ = built
    assert _plan_of(bundle, KINDS["tensorrt-rtx"], None) == plan
    with pytest.raises(UsageError, match="is for tensorrt-rtx: open it as tensorrt-rtx"):
        _plan_of(bundle, KINDS["tensorrt"], plan)
    other = plan.model_copy(update={"bundle_hash": "0" * 64})
    with pytest.raises(BundleError, match="built from another export"):
        _plan_of(bundle, KINDS["tensorrt-rtx"], other)
