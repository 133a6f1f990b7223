"""The report in the terminal: what was not proved stands beside what was."""

from __future__ import annotations

import pytest
from tests.validate.test_table import measured, on, parity, report

from attnport.cli.report_table import show_report
from attnport.validate.fusion import EVERY


def test_what_proved_nothing_is_counted_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    engines = ("ort-cpu", "torch-sdpa")
    vague = "uninformative: the reference is zero everywhere"
    found = [parity(engine, "b1n1", "passed") for engine in engines]
    found += [on(e).finding("parity", "seq-1", "not run", vague, required=False) for e in engines]
    show_report(report(*found))
    shown = capsys.readouterr().out
    assert "1/2 [1][2]" in shown
    assert "[2] ort-cpu, torch-sdpa: 1 of 2 prove nothing: uninformative (seq-1)" in shown


def test_that_no_attention_was_found_stands_beside_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "no attention was found in the graph: what is proved is its numbers alone"
    nothing = on("onnx").finding("fusion", EVERY, "not run", said, required=False)
    show_report(report(parity("ort-cpu", "b1n1", "passed"), nothing))
    shown = capsys.readouterr().out
    assert "no attention found" in shown
    assert f"proved: Yes. The one requirement passed.\n  mha float16: {said}" in shown


def test_a_latency_that_nothing_is_compared_with_says_what_to_add(
    capsys: pytest.CaptureFixture[str],
) -> None:
    note = "no torch form to compare with: add one, such as -e torch-eager"
    alone = measured("latency", "ort-cpu", {"median_us": 1.0}, note)
    show_report(report(parity("ort-cpu", "b1n1", "passed"), measurements=(alone,)))
    assert f"[2] ort-cpu: {note}" in capsys.readouterr().out
