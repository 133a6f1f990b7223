"""Whether a plan runs here is told from its record, before TensorRT sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport import cli
from attnport.engines import devices, libraries
from attnport.engines.devices import CudaDevice
from attnport.engines.plan import EnginePlan
from attnport.engines.plan_check import PlanCheck, check_plan
from attnport.engines.plan_file import plan_path, record_path, save_record
from attnport.errors import BundleError
from attnport.export.bundle import Bundle, file_sha256

BundleMaker = Callable[..., Bundle]
RTX = "tensorrt-rtx"
ADA, HOPPER, TURING = (CudaDevice("a card", cc) for cc in ((8, 9), (9, 0), (7, 5)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this machine one with a device and a TensorRT of some version."""

    def make(device: CudaDevice | None = ADA, version: str = "1.7.1") -> None:
        found = (device,) if device else ()
        monkeypatch.setattr(devices, "cuda_devices", lambda: found)
        monkeypatch.setattr(devices, "why_no_cuda", lambda: "" if device else "no CUDA device")
        monkeypatch.setattr(libraries, "why_missing", lambda name: "")
        monkeypatch.setattr(libraries, "version", lambda name: version)

    return make


def written(bundle: Bundle, **changes: object) -> Path:
    """A plan as `build_engine` leaves it, of content that no TensorRT made."""
    path = plan_path(bundle.path, RTX)
    path.write_bytes(b"plan")
    plan = EnginePlan(
        kind=RTX,
        model="tiny",
        bundle_path=bundle.path,
        bundle_hash=bundle.hash,
        dtype="float16",
        path=path,
        plan_sha256=file_sha256(path),
        versions={"tensorrt_rtx": "1.7.1", "tensorrt": "11.4"},
        build_seconds=1.0,
    )
    plan = EnginePlan.model_validate(plan.model_dump() | changes)
    save_record(plan, record_path(path), path.parent)
    return path


def message(found: PlanCheck, name: str) -> tuple[str, str]:
    (fact,) = (fact for fact in found.facts if fact.name == name)
    return fact.status, fact.message


def test_a_plan_for_this_machine(
    attention_bundle: BundleMaker, machine: Callable[..., None]
) -> None:
    machine()
    found = check_plan(written(attention_bundle()))
    assert {fact.status for fact in found.facts} == {"passed"}
    assert (found.verdict, found.exit_code) == ("runs here", 0)


def test_another_version_says_which_to_install(
    attention_bundle: BundleMaker, machine: Callable[..., None]
) -> None:
    machine(version="1.8.0")
    found = check_plan(written(attention_bundle()))
    status, said = message(found, "version")
    assert status == "failed"
    assert "built by tensorrt_rtx 1.7.1, and here is 1.8.0" in said
    assert "install tensorrt_rtx 1.7.1" in said
    assert (found.verdict, found.exit_code) == ("does not run here", 1)


@pytest.mark.parametrize(("here", "status"), [("1.8.0", "passed"), ("1.6.0", "failed")])
def test_a_version_compatible_plan_runs_in_later_versions(
    attention_bundle: BundleMaker, machine: Callable[..., None], here: str, status: str
) -> None:
    machine(version=here)
    path = written(attention_bundle(), options={"version_compatible": True})
    assert message(check_plan(path), "version")[0] == status


@pytest.mark.parametrize(
    ("device", "targets", "status", "said"),
    [
        (ADA, (), "passed", "built for a card (compute capability 8.9)"),
        (ADA, (89, 120), "passed", "built for"),
        (ADA, (120,), "failed", "build again with --sm 89"),
        (TURING, (), "failed", "build again with --sm 75"),
        (HOPPER, (), "not run", "names no target for a card (compute capability 9.0)"),
        (None, (), "not run", "no CUDA device: check it on the machine that runs it"),
    ],
)
def test_devices(
    attention_bundle: BundleMaker,
    machine: Callable[..., None],
    device: CudaDevice | None,
    targets: tuple[int, ...],
    status: str,
    said: str,
) -> None:
    machine(device)
    found = check_plan(written(attention_bundle(), options={"targets": targets}))
    assert message(found, "device")[0] == status
    assert said in message(found, "device")[1]
    assert found.exit_code == {"passed": 0, "failed": 1, "not run": 3}[status]


@pytest.mark.parametrize(
    ("built", "status"),
    [
        ("a card (compute capability 8.9)", "passed"),
        ("another (compute capability 9.0)", "failed"),
    ],
)
def test_a_tensorrt_plan_is_for_the_device_it_was_built_on(
    attention_bundle: BundleMaker, machine: Callable[..., None], built: str, status: str
) -> None:
    machine(version="11.4")
    found = check_plan(written(attention_bundle(), kind="tensorrt", device=built))
    assert message(found, "device")[0] == status


def test_a_missing_library_is_not_a_broken_plan(
    attention_bundle: BundleMaker, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    monkeypatch.setattr(libraries, "why_missing", lambda name: f"{name} is not installed")
    found = check_plan(written(attention_bundle()))
    assert message(found, "library") == (
        "not run",
        "tensorrt_rtx is not installed: `pip install 'attnport[rtx]'`",
    )
    assert found.exit_code == 3


@pytest.mark.parametrize("change", ["gone", "exported again"])
def test_the_bundle_belongs_to_it(
    attention_bundle: BundleMaker, machine: Callable[..., None], change: str
) -> None:
    machine()
    bundle = attention_bundle()
    path = written(bundle, **({"bundle_hash": "0" * 64} if change != "gone" else {}))
    if change == "gone":
        (bundle.path / "bundle.json").unlink()
    status, said = message(check_plan(path), "bundle")
    assert status == "failed"
    assert ("copy that along" if change == "gone" else "was exported again") in said


@pytest.mark.parametrize("damage", ["truncated", "swapped", "foreign", "absent"])
def test_what_is_no_whole_plan_is_refused(attention_bundle: BundleMaker, damage: str) -> None:
    path = written(attention_bundle())
    if damage == "truncated":
        path.write_bytes(b"pla")
    elif damage == "swapped":
        path.write_bytes(b"other plan")
    elif damage == "foreign":
        path = path.with_name("somebody.engine")
        path.write_bytes(b"ftrt")
    else:
        path.unlink()
    with pytest.raises(BundleError, match="build again with `attnport build`"):
        check_plan(path)
    assert cli.main(["check", str(path)]) == 2


def test_the_command_prints_a_table_or_json(
    attention_bundle: BundleMaker,
    machine: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(TURING)
    path = written(attention_bundle())
    assert cli.main(["check", str(path), "--verify"]) == 1
    assert "does not run here" in capsys.readouterr().out
    assert cli.main(["check", str(path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "does not run here"
    assert [fact["name"] for fact in said["facts"]] == [
        "file", "library", "version", "device", "bundle",
    ]  # fmt: skip
