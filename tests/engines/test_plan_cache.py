"""A plan is built once for what it follows from, and never taken for another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport.engines import libraries
from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.plan_file import load_plan, plan_path, record_path
from attnport.errors import EngineUnavailableError, UsageError
from attnport.export.bundle import Bundle

pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
BundleMaker = Callable[..., Bundle]
RTX = "tensorrt-rtx"


def no_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on TensorRT is not there to build anything."""
    monkeypatch.setattr(libraries, "why_missing", lambda name: f"{name} is gone")


def test_the_same_again_is_found(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = attention_bundle()
    built = build_engine(bundle, RTX)
    no_builder(monkeypatch)
    for rehash in (False, True):
        found = build_engine(bundle, RTX, rehash=rehash)
        assert (built.cached, found.cached) == (False, True)
        assert found == built.model_copy(update={"cached": True})
    assert load_plan(plan_path(bundle.path, RTX)).cached is False


def test_what_a_plan_follows_from_is_in_its_key(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    keys = {
        build_engine(bundle, RTX, options=options).key
        for options in (
            BuildOptions(),
            BuildOptions(targets=(89,)),
            BuildOptions(targets=(89, 120)),
            BuildOptions(optimization_level=1),
            BuildOptions(workspace_bytes=1 << 30),
            BuildOptions(profiles=({"seq": (2, 8, 16)},)),
        )
    }
    assert len(keys) == 6


def test_other_weights_are_another_plan(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = attention_bundle()
    build_engine(bundle, RTX)
    content = bytearray(bundle.model_path.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.model_path.write_bytes(content)
    no_builder(monkeypatch)
    with pytest.raises(EngineUnavailableError, match="is gone"):
        build_engine(bundle, RTX)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "swap", "no record", "no plan"])
def test_a_damaged_plan_is_built_again(attention_bundle: BundleMaker, damage: str) -> None:
    bundle = attention_bundle()
    first = build_engine(bundle, RTX)
    path = plan_path(bundle.path, RTX)
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "swap":
        build_engine(bundle, RTX, out=bundle.path / "other", options=BuildOptions(targets=(89,)))
        plan_path(bundle.path / "other", RTX).replace(path)
    elif damage == "no record":
        record_path(path).unlink()
    else:
        path.unlink()
    again = build_engine(bundle, RTX)
    assert not again.cached
    assert again.plan_sha256 == first.plan_sha256 == load_plan(path).plan_sha256


def test_two_processes_at_once_build_one_plan(attention_bundle: BundleMaker) -> None:
    bundle = attention_bundle()
    code = (
        "import sys\n"
        "from attnport.engines.build import build_engine\n"
        "from attnport.export.bundle import Bundle\n"
        f"print(build_engine(Bundle.load(sys.argv[1]), {RTX!r}).cached)\n"
    )
    command = [sys.executable, "-c", code, str(bundle.path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(process.communicate()[0].strip() for process in running)
    assert said == ["False", "True", "True"]
    assert load_plan(plan_path(bundle.path, RTX)).plan_sha256
    assert not list(bundle.path.glob(".*"))


def test_what_a_killed_build_left_is_removed(attention_bundle: BundleMaker) -> None:
    """As when the machine itself, or both processes at once, were stopped."""
    import socket

    bundle = attention_bundle()
    stale = bundle.path / f".{RTX}.{socket.gethostname()}.abc.building"
    stale.mkdir()
    (stale / "model.plan").write_bytes(b"half")
    elsewhere = bundle.path / f".{RTX}.another-host.abc.building"
    elsewhere.mkdir()
    build_engine(bundle, RTX)
    assert not stale.exists()
    assert elsewhere.exists()


def test_a_plan_moves_with_its_bundle(attention_bundle: BundleMaker, tmp_path: Path) -> None:
    bundle = attention_bundle()
    build_engine(bundle, RTX)
    moved = Bundle.load(bundle.path.rename(tmp_path / "moved"))
    found = build_engine(moved, RTX)
    assert found.cached
    assert found.bundle_path == moved.path
    assert found.path == plan_path(moved.path, RTX)


@pytest.mark.parametrize("kind", ["torch-eager", "ort-cpu"])
def test_kinds_without_a_plan_take_no_options(attention_bundle: BundleMaker, kind: str) -> None:
    with pytest.raises(UsageError, match="builds no plan, so it takes no build options"):
        build_engine(attention_bundle(), kind, options=BuildOptions(optimization_level=1))
