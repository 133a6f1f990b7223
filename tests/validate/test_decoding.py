"""Decoding judged: good engines pass in every way, faults of decoding are caught by it alone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from tests.validate.decoders import Decoder
from tests.validate.mutants.decoding_faults import DECODING_FAULTS
from tests.validate.mutants.engine_faults import WrongEngine
from torch import nn

from attnport.engines.decoding.open import carried_session, open_decoding
from attnport.export.bundle import Bundle
from attnport.export.records import OutputErrors
from attnport.validate.bound import bound
from attnport.validate.decoding import Truth, truth_of
from attnport.validate.decoding_greedy import check_greedy
from attnport.validate.decoding_ways import WAYS
from attnport.validate.finding import Finding
from attnport.validate.prove import prove
from attnport.validate.prove_decoding import judge_decoding, prove_decoding

NAMES = ("decoder", "decoder-static")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products this small are not worth a second thread, and wait for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=NAMES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return Decoder.export(request.param, tmp_path_factory.mktemp("decoding"))


@pytest.fixture(scope="module")
def truth(decoder: Decoder) -> Truth:
    with open_decoding(decoder.bundle, "ort-cpu") as session:
        found = truth_of(decoder.bundle, session.layout, decoder.module)
    assert isinstance(found, Truth)
    return found


def of_engine(decoder: Decoder, engine: WrongEngine) -> dict[str, Finding]:
    found = judge_decoding(
        decoder.bundle, "ort-cpu", lambda: carried_session(decoder.bundle, engine),
        decoder.module, required=True,
    )  # fmt: skip
    return {finding.case: finding for finding in found}


@pytest.mark.parametrize("kind", ["ort-cpu", "torch-eager"])
def test_good_engine_passes_in_every_way(decoder: Decoder, kind: str) -> None:
    found = {
        f.case: f
        for f in prove_decoding(decoder.bundle, kind, None, decoder.module, required=True)
    }
    assert list(found) == [*WAYS, "greedy"]
    assert {f.case: f.message for f in found.values() if f.status != "passed"} == {}
    assert all(f.required and f.check == "decoding" for f in found.values())
    copied = found["token-by-token"].numbers["cache_bytes_per_step"]
    assert (copied == 0) == (kind == "ort-cpu")
    assert found["greedy"].numbers["prompts"] == 20


@pytest.mark.parametrize(
    ("fault", "ways"),
    [
        ("positions off by one in decode", {"token-by-token", "chunks", "alone"}),
        ("cache written one row off", {"token-by-token", "chunks", "alone"}),
        ("K and V cache swapped", {"token-by-token", "chunks", "alone"}),
        ("past ignored", {"token-by-token", "chunks", "alone"}),
        ("mask of padding ignored in decode", {"left-padding", "lengths-padded-left"}),
        ("caches of two sequences swapped", {"beside-others"}),
    ],
)
def test_fault_is_caught_by_decoding(decoder: Decoder, fault: str, ways: set[str]) -> None:
    wrong = DECODING_FAULTS[fault](decoder.good)
    assert wrong is not None
    found = of_engine(decoder, WrongEngine(decoder.bundle, wrong))
    failed = {case for case, one in found.items() if one.status == "failed" and one.required}
    assert ways <= failed
    assert "full" not in failed


def test_proof_of_a_bundle_with_caches_includes_decoding(decoder: Decoder) -> None:
    report = prove(decoder.bundle, ["ort-cpu"], module=decoder.module)
    found = [f for f in report.findings if f.check == "decoding"]
    assert len(found) == len(WAYS) + 1
    assert all(f.status == "passed" and f.required for f in found)


def test_failed_way_fails_the_proof(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = DECODING_FAULTS["past ignored"](decoder.good)
    assert wrong is not None
    engine = WrongEngine(decoder.bundle, wrong)
    monkeypatch.setattr(
        "attnport.validate.prove_decoding.open_decoding",
        lambda bundle, *_, **__: carried_session(bundle, engine),
    )
    report = prove(decoder.bundle, ["ort-cpu"], module=decoder.module)
    assert report.verdict == "failed"
    (said,) = [f.message for f in report.findings if f.case == "token-by-token"]
    assert said.startswith("Every token a step, from empty caches on.")


def test_without_the_module_shipped_sequences_are_needed(decoder: Decoder) -> None:
    (found,) = prove_decoding(decoder.bundle, "ort-cpu", None, None, required=True)
    assert (found.status, found.required) == ("not run", True)
    assert "carries no case 'decoding', and the module is not at hand" in found.message


def test_range_without_a_prompt_is_said(decoder: Decoder) -> None:
    manifest = decoder.bundle.manifest
    one = manifest.model_copy(update={"axes": {**manifest.axes, "seq": (1, 1, 1)}})
    bundle = Bundle(decoder.bundle.path, one)
    (found,) = prove_decoding(bundle, "ort-cpu", None, decoder.module, required=True)
    assert found.status == "not run"
    assert "its axes take no sequence of two tokens from empty caches" in found.message


def test_shipped_sequences_need_no_module(
    decoder: Decoder, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnport.validate.prove_decoding.truth_of", lambda *_: truth)
    *ways, greedy = prove_decoding(decoder.bundle, "ort-cpu", None, None, required=True)
    assert all(f.status == "passed" and f.required for f in ways)
    assert (greedy.status, greedy.required) == ("not run", False)
    assert "the module is not at hand" in greedy.message


def test_inputs_that_are_not_understood_are_said(decoder: Decoder) -> None:
    manifest = decoder.bundle.manifest
    inputs = [s.model_copy(update={"role": "lengths"}) for s in manifest.inputs]
    bundle = Bundle(decoder.bundle.path, manifest.model_copy(update={"inputs": tuple(inputs)}))
    (found,) = prove_decoding(bundle, "ort-cpu", None, decoder.module, required=True)
    assert (found.status, found.required) == ("not run", False)
    assert "has neither token ids nor activations" in found.message


def test_all_ways_uninformative_is_no_proof(
    decoder: Decoder, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = OutputErrors(max=truth.reference.rms, mean=truth.reference.rms)
    vague = dataclasses.replace(
        truth, reference=truth.reference.model_copy(update={"perturbed": wide})
    )
    monkeypatch.setattr("attnport.validate.prove_decoding.truth_of", lambda *_: vague)
    found = {
        f.case: f
        for f in prove_decoding(decoder.bundle, "ort-cpu", None, decoder.module, required=True)
    }
    assert {f.status for f in found.values()} == {"not run"}
    assert [f.case for f in found.values() if f.required] == ["coverage"]


def test_engine_that_cannot_be_opened_is_told(decoder: Decoder) -> None:
    (found,) = prove_decoding(decoder.bundle, "ort-cuda", None, decoder.module, required=True)
    assert (found.status, found.case) == ("not run", "session")
    assert "no CUDA device" in found.message


TWIN, OTHER = 5, 6


def with_twins(decoder: Decoder) -> nn.Module:
    """The module with two tokens whose logits are always equal, and often the largest."""
    module = copy.deepcopy(decoder.module)
    with torch.no_grad():
        head = module.get_parameter("head.weight")
        head[TWIN] *= 4
        head[OTHER] = head[TWIN]
    return module


@pytest.mark.parametrize(("raised", "status"), [(OTHER, "passed"), (TWIN + 2, "failed")])
def test_choice_between_close_logits_is_said_and_no_fault(
    decoder: Decoder, truth: Truth, raised: int, status: str
) -> None:
    """An engine that prefers the other of two equal tokens, or one that is not equal at all."""
    by = bound(truth.reference, "float32").max

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = dict(decoder.good.run(feeds))
        logits = outputs["logits"].copy()
        logits[..., TWIN] *= 4
        logits[..., OTHER] = logits[..., TWIN]
        logits[..., raised] = logits.max(-1) + by if raised != OTHER else logits[..., TWIN] + by
        return {**outputs, "logits": logits}

    with carried_session(decoder.bundle, WrongEngine(decoder.bundle, run)) as session:
        found = check_greedy(session, decoder.bundle, with_twins(decoder), truth, required=True)
    assert found.status == status
    assert ("not every token is PyTorch's" in found.message) == (status == "failed")
    if status == "passed":
        close = found.numbers["too_close_to_tell"]
        assert isinstance(close, int)
        assert close > 0
        assert f"{close} between logits closer than the bound" in found.message
