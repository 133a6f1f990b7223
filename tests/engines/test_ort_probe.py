"""Graphs that kill ONNX Runtime kill a child process, and are then refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnport.engines import ort_engine, ort_probe
from attnport.engines.open import open_engine
from attnport.engines.ort_probe import ask_child, require_survivable
from attnport.errors import GraphError
from attnport.export.bundle import Bundle

pytest.importorskip("onnxruntime", reason="opens sessions of ONNX Runtime")
BundleMaker = Callable[..., Bundle]
CPU = "CPUExecutionProvider"


@pytest.fixture
def deadly(attention_bundle: BundleMaker) -> Bundle:
    """fp16 Transpose(1,0,2) -> MatMul(constant): with its layout pass onnxruntime 1.32 dies."""
    bundle = attention_bundle()
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["batch", "seq", 128])
        for name in "xy"
    )
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["t", "w"], ["p"]),
        helper.make_node("Transpose", ["p"], ["y"], perm=[1, 0, 2]),
    ]
    weight = numpy_helper.from_array(np.eye(128, dtype=np.float16), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), bundle.model_path)
    return bundle


def test_a_graph_that_kills_is_an_error_and_not_a_death(
    deadly: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The optimizer that dies of it is what we leave out; here it is let in again.
    monkeypatch.setattr(ort_engine, "DISABLED_OPTIMIZERS", [])
    for _ in range(2):  # nothing is remembered of a death
        with pytest.raises(GraphError, match=r"died of SIG\w+ while it opened .*model\.onnx"):
            open_engine(deadly, "ort-cpu")


def test_after_a_death_other_graphs_open(deadly: Bundle) -> None:
    with pytest.raises(GraphError, match="in a trial process"):
        require_survivable(deadly.model_path, None, CPU, [])
    with open_engine(deadly, "ort-cpu") as engine:
        assert engine.placement()


def test_a_graph_is_tried_once(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = attention_bundle(dtype="float32")
    asked: list[object] = []

    def watched(question: dict[str, object]) -> ort_probe.Answer:
        asked.append(question)
        return ask_child(question)

    monkeypatch.setattr(ort_probe, "ask_child", watched)
    for _ in range(2):
        open_engine(bundle, "ort-cpu").close()
    assert len(asked) == 1
    content = bundle.model_path.read_bytes()
    bundle.model_path.write_bytes(content.replace(b"tiny", b"TINY"))
    open_engine(bundle, "ort-cpu").close()
    assert len(asked) == 2


def test_what_cannot_be_remembered_is_tried_again(
    attention_bundle: BundleMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNPORT_CACHE_DIR", str(tmp_path / "file"))
    bundle = attention_bundle(dtype="float32")
    for _ in range(2):
        open_engine(bundle, "ort-cpu").close()


def test_the_child_says_what_onnxruntime_says(tmp_path: Path) -> None:
    answer = ask_child({"model": str(tmp_path / "none"), "provider": CPU, "disabled": []})
    assert answer.providers == ()
    assert "none" in answer.error
    assert ask_child({"identity": True, "provider": CPU}).providers == (CPU,)


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "from attnport.engines import ort_probe\n"
        f"ort_probe.ask_child({{'identity': True, 'provider': {CPU!r}}})\n"
        "print(ort_probe._child.process.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
