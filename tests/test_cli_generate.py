"""`attnport generate`: ids in, ids out, and every kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.engines.decoding.by_hand import Kind, V, full_pass, make_bundle, weights

from attnport import cli

KINDS: tuple[Kind, ...] = ("concat", "static")


@pytest.fixture(scope="module", params=KINDS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("generate") / "lm", request.param).path


def continued(prompt: list[int], tokens: int) -> list[int]:
    """What the float64 model chooses, by a whole pass for each token."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(full_pass(weights(), np.array([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_ids_out(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        str(bundle),
        "--prompt-ids",
        "1,2,3",
        "--prompt-ids",
        "30",
        "--tokens",
        "6",
    ]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == ",".join(map(str, continued([1, 2, 3], 6)))
    assert shown[1] == ",".join(map(str, continued([30], 6)))
    assert "tokens/s, 5 steps" in capsys.readouterr().out + "\n".join(shown)
    assert "0 of caches" in "\n".join(shown)


def test_json(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["generate", str(bundle), "--prompt-ids", "1, 2", "--tokens", "3", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == [continued([1, 2], 3)]
    assert len(found["step_seconds"]) == len(found["bytes_copied_per_step"]) == 2
    assert found["bytes_copied_per_step"][0]["caches"] == 0
    assert found["tokens_per_second"] > 0
    assert not found["full"]


def test_prompt_longer_than_a_step_is_fed_in_chunks(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = [int(n) for n in np.random.default_rng(3).integers(0, V, 17)]
    words = ["generate", str(bundle), "--prompt-ids", ",".join(map(str, prompt)), "--tokens", "2"]
    assert cli.main([*words, "--prompt-ids", "4,5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == ",".join(map(str, continued(prompt, 2)))
    assert shown[1] == ",".join(map(str, continued([4, 5], 2)))


def test_full_caches_end_it_and_are_said(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", str(bundle), "--prompt-ids", "1", "--tokens", "99"]) == 0
    assert "the caches were full after" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no prompt was given: add --prompt-ids"),
        (["--prompt-ids", "1,two"], "'1,two' is no list of token ids"),
        (["--prompt-ids", ""], "is no list of token ids"),
        (["--prompt-ids", "1,40"], "token 40 .* none of the vocabulary's 40 ids"),
        (["--prompt-ids", "-1"], "token -1 "),
        (["--prompt-ids", "1", "--engine", "onnx"], "there is no engine 'onnx'"),
        (["--prompt-ids", "1", "--engine", "torch-eager"], "runs the PyTorch module"),
        (["--prompt-ids", ",".join(["1"] * 40)], "the cache is full"),
    ],
)
def test_bad_input(
    bundle: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    import re

    assert cli.main(["generate", str(bundle), *words]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_bundle_without_caches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.validate.small_bundle import make_bundle as make_plain

    plain = make_plain(tmp_path / "plain")
    assert cli.main(["generate", str(plain.path), "--prompt-ids", "1"]) == 2
    assert "has no caches, so it cannot decode" in capsys.readouterr().err
