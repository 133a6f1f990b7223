"""Gates: where requirements are read from, latency with its confidence, and the baseline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.validate.reports import finding, latency, report

from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.validate.baseline import compare
from attnport.validate.finding import Finding
from attnport.validate.gates import Gates, find_gates, load_gates
from attnport.validate.latency_gate import check_latency
from attnport.validate.requirements import Requirements

YAML = """\
engines: [ort-cpu]
cases: further
baseline: reports/main.json
require: {parity: [ort-cpu], latency: {ort-cpu: 1.1}, worse_by_percent: 10}
"""
TOML = """\
[tool.attnport]
engines = ["ort-cpu"]
[tool.attnport.require]
kernels = {tensorrt-rtx = 5}
"""


def test_yaml_and_toml_say_the_same_things(tmp_path: Path) -> None:
    (tmp_path / "attnport.yaml").write_text(YAML)
    gates = load_gates(tmp_path / "attnport.yaml")
    assert gates.engines == ("ort-cpu",)
    assert gates.cases == "further"
    assert gates.baseline == Path("reports/main.json")
    assert gates.require.latency == {"ort-cpu": 1.1}
    (tmp_path / "pyproject.toml").write_text(TOML)
    assert load_gates(tmp_path / "pyproject.toml").require.kernels == {"tensorrt-rtx": 5}
    found = find_gates(tmp_path)
    assert found is not None
    assert found[1].name == "attnport.yaml"


def test_a_folder_without_either_has_none(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert find_gates(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text("not toml [")
    assert find_gates(tmp_path) is None


def test_a_file_of_requirements_alone_is_read(tmp_path: Path) -> None:
    (tmp_path / "require.yaml").write_text("parity: [ort-cpu]\n")
    assert load_gates(tmp_path / "require.yaml") == Gates(
        require=Requirements(parity=("ort-cpu",))
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine: [ort-cpu]\nrequire: {}", "did you mean 'engines'"),
        ("engines: [ort-gpu]", "no engine 'ort-gpu'"),
        ("cases: all", "cases is 'all'"),
        ("require: 3", "require is 3"),
        ("require: {latency: {ort: 1}}", "'ort' is no kind of engine"),
        ("require: {worse_by_percent: -1}", "worse_by_percent"),
        ("- 1", "holds no requirements"),
        ("a: [", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "attnport.yaml").write_text(text)
    with pytest.raises(UsageError, match=said):
        load_gates(tmp_path / "attnport.yaml")


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [(0.8, 1.0, "passed"), (0.9, 1.3, "not run"), (1.2, 1.4, "failed")],
)
def test_latency_holds_with_its_whole_interval(
    bundle: Bundle, low: float, high: float, status: str
) -> None:
    measured = latency(low, (low + high) / 2, high, bundle=bundle.hash)
    (found,) = check_latency(bundle, [measured], Requirements(latency={"ort-cpu": 1.1}))
    assert (found.status, found.required) == (status, True)
    assert "95%" in found.message


def test_latency_that_was_not_measured_or_has_no_peer_is_not_run(bundle: Bundle) -> None:
    require = Requirements(latency={"ort-cpu": 1.1})
    (found,) = check_latency(bundle, [], require)
    assert (found.status, "not measured" in found.message) == ("not run", True)
    alone = latency(1, 1, 1, bundle=bundle.hash, values={}, note="no torch form to compare with")
    (found,) = check_latency(bundle, [alone], require)
    assert (found.status, "no torch form" in found.message) == ("not run", True)
    same = latency(9, 9, 9, bundle=bundle.hash, note="A/A test: fine")
    assert next(iter(check_latency(bundle, [same], require))).status == "not run"


def statuses(found: list[Finding]) -> dict[str, str]:
    return {f.case: f.status for f in found}


def test_nothing_changed() -> None:
    same = report([finding()])
    (summary,) = compare(same, same, 10)
    assert (summary.case, summary.status) == ("summary", "passed")
    assert "nothing changed" in summary.message


def test_what_became_worse_fails_and_what_became_better_passes() -> None:
    before = report([finding(case="a"), finding(case="b", status="failed"), finding(case="gone")])
    now = report([finding(case="a", status="failed"), finding(case="b"), finding(case="new")])
    found = compare(now, before, None)
    assert statuses(found) == {
        "parity/a": "failed", "parity/b": "passed", "parity/gone": "not run", "summary": "failed",
    }  # fmt: skip
    assert found[-1].numbers == {"worse": 1, "better": 1, "gone": 1, "new": 1}
    assert [f.required for f in found] == [True, False, True, True]


@pytest.mark.parametrize(
    ("old", "new", "percent", "worse"),
    [(0.5, 0.9, 10, True), (0.1, 0.5, 10, False), (0.85, 0.9, 10, False), (0.5, 0.9, None, False)],
    ids=["near the bound", "rounding", "within", "statuses only"],
)
def test_an_error_that_grew_counts_only_near_the_bound(
    old: float, new: float, percent: float | None, worse: bool
) -> None:
    before, now = (report([finding(numbers={"ratio": value})]) for value in (old, new))
    assert (compare(now, before, percent)[-1].status == "failed") is worse


def test_a_slower_engine_fails_by_its_whole_interval_on_the_same_processor_only() -> None:
    before, now = (
        report([finding()], [latency(0.9, 1.0, 1.1)]),
        report([finding()], [latency(1.2, 1.3, 1.4)]),
    )
    assert statuses(compare(now, before, 10))["latency/ratio"] == "failed"
    assert "latency/ratio" not in statuses(compare(now, before, 25))
    elsewhere = before.model_copy(
        update={"machine": before.machine.model_copy(update={"cpu": "M"})}
    )
    assert "latency/ratio" not in statuses(compare(now, elsewhere, 10))


def test_a_baseline_of_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the baseline is of other in float32, and this .* mha"):
        compare(report([finding()]), report([finding(model="other")]), 10)


def test_another_bundle_of_the_same_model_is_compared() -> None:
    now, before = report([finding(bundle="cd" * 32)]), report([finding()])
    assert compare(now, before, 10)[-1].status == "passed"
