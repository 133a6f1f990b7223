"""Beyond the shipped cases: generated and own ones, repetition, reproducers, modules at fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.validate.mutants.subjects import SUBJECTS, exported, module_of
from torch import nn

from attnport.axes import Axis
from attnport.engines.engine import Engine
from attnport.engines.ort_engine import OrtEngine
from attnport.errors import InputError, UsageError
from attnport.export.arrays import save_arrays
from attnport.export.bundle import Bundle
from attnport.export.memory_need import MemoryNeed
from attnport.models.sources import spec_from_source
from attnport.pipeline_run import bundle_from_spec
from attnport.validate.extent import Extent, OwnCases
from attnport.validate.finding import Finding
from attnport.validate.own_cases import cases_from_file, cases_from_generator
from attnport.validate.prove import prove
from attnport.validate.report import Report

X = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
MASK = np.ones((2, 1, 5, 5), bool)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(SUBJECTS["masked"], "float32", tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return module_of(SUBJECTS["masked"], 1)


@pytest.fixture(scope="module")
def further(masked: Bundle, module: nn.Module) -> Report:
    return prove(masked, ["ort-cpu"], module=module, extent=Extent(further=True))


def of(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


def test_further_cases_prove_a_right_engine(further: Report) -> None:
    assert further.verdict == "proved"
    numbers = [finding.numbers for finding in of(further, "parity")]
    assert {n.get("mask") for n in numbers} >= {"block", "all-dead", "same-batch", "same-queries"}
    assert {n.get("magnitude") for n in numbers} >= {"large", "overflow", "constant", "one-hot"}
    assert len({n.get("sizes") for n in numbers}) > 8


def test_sizes_that_ordinary_numbers_do_not_prove_are_proved_by_growing_ones(
    tmp_path: Path,
) -> None:
    """A causal module in bfloat16, whose later tokens are small averages beside the first ones."""
    sizes = {"d_model": "32", "num_heads": "2"}
    axes = [Axis("batch", 1, 2, 2), Axis("seq", 1, 5, 512)]
    spec = spec_from_source("causal-multi-head", sizes, (), axes)
    bundle = bundle_from_spec(spec, tmp_path / "b", dtype="bfloat16", max_cases=3)
    report = prove(bundle, ["torch-sdpa"], module=spec.make(), extent=Extent(further=True, seed=1))
    status = {f.case: f.status for f in of(report, "parity")}
    again = [name for name in status if name.endswith("-growing") and name != "numbers-growing"]
    assert again
    for name in again:
        assert status[name.removesuffix("-growing")] == "not run"
        assert status[name] == "passed"


def test_properties_of_the_module_are_required(further: Report) -> None:
    found = {finding.case.rpartition("/")[2] for finding in of(further, "property")}
    assert found >= {"alone:batch", "permuted:batch", "beside-nan:batch", "permuted:seq"}
    assert all(finding.required for finding in of(further, "property"))


def test_rerun_and_reopened_give_the_same_bits(further: Report) -> None:
    cases = {finding.case.partition("/")[0]: finding for finding in of(further, "repeat")}
    assert set(cases) == {"rerun", "reopened"}
    assert all(finding.numbers == {"same_bits": True} for finding in cases.values())


def test_what_the_budget_does_not_hold_is_left_out_and_said(
    masked: Bundle, module: nn.Module
) -> None:
    need = MemoryNeed(module, masked.manifest.inputs)
    extent = Extent(further=True, memory_bytes=need.bytes_at({"batch": 2, "seq": 10}))
    report = prove(masked, ["ort-cpu"], module=module, extent=extent)
    left = [f for f in of(report, "parity") if f.message.startswith("left out")]
    assert left
    assert not any(finding.required for finding in left)
    assert report.verdict == "proved"
    assert "largest" in {f.case for f in of(report, "parity") if f.status == "passed"}
    with pytest.raises(UsageError, match="give a larger memory budget"):
        prove(masked, ["ort-cpu"], module=module, extent=Extent(further=True, memory_bytes=1))


def test_own_cases_come_from_files_and_generators(
    masked: Bundle, module: nn.Module, tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", x=X, mask=MASK)
    save_arrays(
        {"one/x": X, "one/mask": MASK, "two/x": X[:1], "two/mask": MASK[:1]},
        tmp_path / "two.safetensors",
    )

    def generate() -> Iterator[object]:
        yield {"x": X, "mask": MASK}
        yield "named", {"x": X, "mask": MASK}

    own = (
        cases_from_file(tmp_path / "mine.npz"),
        cases_from_file(tmp_path / "two.safetensors"),
        cases_from_generator("generate", generate),
    )
    report = prove(masked, ["ort-cpu"], module=module, extent=Extent(own=own))
    found = {f.case: f.status for f in of(report, "parity") if f.case.startswith("own-")}
    assert found == dict.fromkeys(
        ("own-mine", "own-one", "own-two", "own-0", "own-named"), "passed"
    )


def raising() -> Iterator[object]:
    raise ValueError("no data today")
    yield


@pytest.mark.parametrize(
    ("own", "error", "said"),
    [
        (lambda: iter([{"x": X}]), InputError, "missing: mask"),
        (lambda: iter([{"x": X.astype(np.float64), "mask": MASK}]), InputError, "float64"),
        (lambda: iter([{"x": X[:, :, :3], "mask": MASK}]), InputError, "shape"),
        (lambda: iter([3]), InputError, "yields int"),
        (lambda: 3, InputError, "returned int"),
        (lambda: iter([]), InputError, "yields no case"),
        (raising, InputError, "raised ValueError: no data today"),
        (lambda: iter([("a", {"x": X, "mask": MASK})] * 2), UsageError, "two cases the name 'a'"),
    ],
)
def test_own_cases_that_do_not_fit_are_refused(
    masked: Bundle, module: nn.Module, own: object, error: type[Exception], said: str
) -> None:
    cases = cases_from_generator("gen", own)  # type: ignore[arg-type]  # some are wrong on purpose
    with pytest.raises(error, match=said):
        prove(masked, ["ort-cpu"], module=module, extent=Extent(own=(cases,)))


def test_files_that_are_no_cases_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"no zip")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    np.savez(tmp_path / "empty.npz")
    for name, said in (
        ("broken.npz", "cannot be read as .npz"),
        ("broken.safetensors", "cannot be read as safetensors"),
        ("empty.npz", "holds no array"),
        ("cases.csv", "is not a file of cases"),
        ("missing.npz", "there is no file"),
    ):
        with pytest.raises(UsageError, match=said):
            cases_from_file(tmp_path / name)


def test_without_the_module_further_cases_are_refused(masked: Bundle) -> None:
    for extent in (Extent(further=True), Extent(own=(OwnCases("none", lambda: ()),))):
        with pytest.raises(UsageError, match="are computed by the module, and"):
            prove(masked, ["ort-cpu"], extent=extent)


class Random(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)


def test_a_module_that_is_not_deterministic_is_a_failed_finding(masked: Bundle) -> None:
    report = prove(masked, ["ort-cpu"], module=Random(), extent=Extent(further=True))
    (found,) = of(report, "module")
    assert (found.status, found.required) == ("failed", True)
    assert "not deterministic" in found.message
    assert report.verdict == "failed"


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ONNX Runtime engine is off by a hundredth."""
    run = OrtEngine.run

    def off(self: OrtEngine, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array + np.float32(0.01) for name, array in run(self, feeds).items()}

    monkeypatch.setattr(OrtEngine, "run", off)


@pytest.mark.usefixtures("wrong")
def test_every_failure_leaves_what_reproduces_it(masked: Bundle, tmp_path: Path) -> None:
    report = prove(masked, ["ort-cpu"], extent=Extent(reproducers=tmp_path / "again"))
    folders = sorted((tmp_path / "again").iterdir())
    named = [f.numbers["reproducer"] for f in report.findings if "reproducer" in f.numbers]
    assert sorted(map(str, named)) == [str(folder) for folder in folders]
    assert 0 < len(folders) <= 10
    parity = next(folder for folder in folders if "parity" in folder.name)
    assert {file.name for file in parity.iterdir()} >= {
        "finding.json", "inputs.safetensors", "model.onnx", "reference.safetensors", "reproduce.py",
    }  # fmt: skip
    # The graph itself is right here, so the script says that it does not happen again.
    done = subprocess.run(
        [sys.executable, str(parity / "reproduce.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stdout


@pytest.mark.usefixtures("wrong")
def test_reproducers_that_cannot_be_written_are_said(masked: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the reproducer cannot be written"):
        prove(masked, ["ort-cpu"], extent=Extent(reproducers=tmp_path / "file"))


def test_an_engine_whose_bits_change_is_stated_and_passes_within_the_bound(
    masked: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, count = OrtEngine.run, [0]

    def unsteady(self: Engine, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        count[0] += 1
        step = np.float32(1 + count[0] % 2 * 2**-23)
        outputs = run(self, feeds)  # type: ignore[arg-type]  # only ONNX Runtime's are patched
        return {name: array * step for name, array in outputs.items()}

    monkeypatch.setattr(OrtEngine, "run", unsteady)
    report = prove(masked, ["ort-cpu"])
    (found,) = of(report, "repeat")
    assert (found.status, found.numbers["same_bits"]) == ("passed", False)
    assert "differs by up to" in found.message
