"""What was not proved is not served, unless asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.serve.bundles import identity_bundle
from tests.validate.small_bundle import make_bundle

from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.serve.open_models import Proof, Source, open_models
from attnport.serve.proof import UnprovedError, require_proof
from attnport.validate.prove import prove
from attnport.validate.report import Report
from attnport.validate.requirements import Requirements

PARITY = Requirements(parity=("ort-cpu",), qkv=False, fusion=())


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "small")


@pytest.fixture(scope="session")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of the bundle that `make_bundle` writes: it is the same wherever it lies."""
    made = make_bundle(tmp_path_factory.mktemp("proved") / "small")
    report = prove(made, ["ort-cpu"], require=PARITY)
    assert report.verdict == "proved"
    return report


@pytest.mark.parametrize("place", ["report.json", "../report.json"])
def test_a_report_in_the_bundle_or_beside_it(bundle: Bundle, proved: Report, place: str) -> None:
    proved.save(bundle.path / place)
    assert require_proof(bundle, "ort-cpu").samefile(bundle.path / place)


def test_a_report_that_is_named(bundle: Bundle, proved: Report, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else" / "proof.json"
    proved.save(elsewhere)
    assert require_proof(bundle, "ort-cpu", elsewhere) == elsewhere


def test_no_report(bundle: Bundle) -> None:
    with pytest.raises(
        UnprovedError, match=r"has no report\.json in it or beside it: run `attnport"
    ):
        require_proof(bundle, "ort-cpu")


def test_a_report_of_another_export(bundle: Bundle, proved: Report, tmp_path: Path) -> None:
    other = make_bundle(tmp_path / "other", seed=7)
    proved.save(other.path / "report.json")
    with pytest.raises(UnprovedError, match="belongs to another export"):
        require_proof(other, "ort-cpu")


def test_a_report_that_failed(bundle: Bundle, proved: Report) -> None:
    first, *rest = (f for f in proved.findings if f.required)
    failed = first.model_copy(update={"status": "failed"})
    report = proved.model_copy(update={"findings": (failed, *rest)})
    report.save(bundle.path / "report.json")
    with pytest.raises(UnprovedError, match="says 'failed' of"):
        require_proof(bundle, "ort-cpu")


def test_the_failure_of_another_bundle_does_not_matter(bundle: Bundle, proved: Report) -> None:
    other = proved.findings[0].model_copy(
        update={"bundle": "another", "status": "failed", "required": True}
    )
    report = proved.model_copy(update={"findings": (*proved.findings, other)})
    report.save(bundle.path / "report.json")
    assert report.verdict == "failed"
    assert require_proof(bundle, "ort-cpu").is_file()


def test_a_report_on_another_engine(bundle: Bundle, proved: Report) -> None:
    proved.save(bundle.path / "report.json")
    with pytest.raises(UnprovedError, match="proves parity of ort-cpu, and not of tensorrt-rtx"):
        require_proof(bundle, "tensorrt-rtx")


def test_a_report_without_a_requirement(bundle: Bundle, proved: Report) -> None:
    loose = [finding.model_copy(update={"required": False}) for finding in proved.findings]
    proved.model_copy(update={"findings": tuple(loose)}).save(bundle.path / "report.json")
    with pytest.raises(UnprovedError, match="says 'not proved' of"):
        require_proof(bundle, "ort-cpu")


def test_what_is_no_report(bundle: Bundle) -> None:
    (bundle.path / "report.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a report written by attnport"):
        require_proof(bundle, "ort-cpu")


def test_unproved_is_served_with_a_warning(bundle: Bundle) -> None:
    said: list[str] = []
    (model,) = open_models(
        [Source(bundle.path)], "ort-cpu", proof=Proof(unproved=True, warn=said.append), threads=1
    )
    model.engine.close()
    assert said == [
        f"serving what is not proved: {bundle.path} has no report.json in it or beside it"
    ]


def test_several_models_and_versions(bundle: Bundle, tmp_path: Path) -> None:
    other = identity_bundle(tmp_path / "other", "float32")
    proof = Proof(unproved=True)
    words = (f"{bundle.path}", f"mine={other.path}", f"mine:2={bundle.path}")
    models = open_models([Source.parse(word) for word in words], "ort-cpu", proof=proof)
    assert [(m.name, m.version) for m in models] == [("small", "1"), ("mine", "1"), ("mine", "2")]
    for model in models:
        model.engine.close()


def test_a_name_that_is_taken(bundle: Bundle, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle.path, tmp_path / "copy")
    sources = [Source(bundle.path), Source(copy)]
    with pytest.raises(
        UsageError, match=r"two bundles are to be version 1 of 'small': write NAME="
    ):
        open_models(sources, "ort-cpu", proof=Proof(unproved=True))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("a b=x", "cannot stand in a URL"),
        ("m:0=x", "the version in 'm:0=x' is '0'"),
        ("m:one=x", "give a whole number from 1"),
        ("m:01=x", "give a whole number from 1"),
    ],
)
def test_wrong_names(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Source.parse(word)


def test_a_torch_engine_is_not_served(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="'torch-eager' cannot be served: use one of ort-cpu"):
        open_models([Source(bundle.path)], "torch-eager")
