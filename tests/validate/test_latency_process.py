"""Latency measured for real, in a process of its own, on a bundle small enough to be quick."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tests.validate.small_bundle import HEAD_SIZE, HEADS, WIDTH, make_bundle, weight_of

from attnport.errors import ModuleError, UsageError
from attnport.export.bundle import Bundle
from attnport.validate import latency_process
from attnport.validate.latency import LatencyResult, measure_latency
from attnport.validate.latency_module import make_module

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")


class SmallAttention(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch comes from importorskip
    """The module of `small_bundle`, defined in a file that no other process finds by name."""

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(weight))

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, n, _ = x.shape
        q, k, v = (x @ self.weight).reshape(b, n, 3, HEADS, HEAD_SIZE).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD_SIZE)
        hidden = torch.ones(n, n, dtype=torch.bool).tril().logical_not()
        context = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return context.transpose(1, 2).reshape(b, n, WIDTH)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("latency") / "small")


def measured(bundle: Bundle, *kinds: str, **options: object) -> LatencyResult:
    return measure_latency(bundle, kinds, seconds=0.05, rounds=5, threads=1, **options)  # type: ignore[arg-type]


def test_engines_are_measured_beside_each_other(bundle: Bundle) -> None:
    found = measured(
        bundle, "torch-eager", "torch-sdpa", "ort-cpu", module=SmallAttention(weight_of(bundle))
    )
    eager, ort, same = found.measurements
    assert [eager.engine, ort.engine, same.engine] == ["torch-eager", "ort-cpu", "torch-eager"]
    assert "SDPA" in found.left_out["torch-sdpa"]
    assert same.note.startswith("A/A test")
    assert ort.values["reference"] == "torch-eager"
    assert (ort.case, ort.values["threads"]) == ("b2n7", 1)
    assert all(isinstance(one.values["samples"], int) for one in found.measurements)


def test_module_from_a_file_run_by_path(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Mine(torch.nn.Linear):\n    def forward(self, x):\n        return x\n"
        f"def factory():\n    return Mine({WIDTH}, {WIDTH})\n",
        "utf-8",
    )
    spec = importlib.util.spec_from_file_location("_attnport_by_path", tmp_path / "mine.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    try:
        spec.loader.exec_module(loaded)
        found = measured(bundle, "torch-eager", module=loaded.factory())
    finally:
        del sys.modules[spec.name]
    assert found.left_out == {}
    assert found.measurements[0].engine == "torch-eager"


def test_module_of_the_script_itself(bundle: Bundle, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import torch
        from attnport.export.bundle import Bundle
        from attnport.validate.latency import measure_latency

        class Mine(torch.nn.Identity):
            def forward(self, x):
                return x

        if __name__ == "__main__":
            found = measure_latency(Bundle.load({str(bundle.path)!r}), ["torch-eager"],
                                    module=Mine(), seconds=0.05, rounds=3, threads=1)
            print(len(found.measurements), found.left_out)
        """),
        "utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 {}\n"


def test_module_that_cannot_travel_is_said(bundle: Bundle) -> None:
    class Local(torch.nn.Identity):  # type: ignore[misc, name-defined]
        pass

    found = measured(bundle, "torch-eager", "ort-cpu", module=Local())
    assert "top of a file" in found.left_out["torch-eager"]
    assert [one.engine for one in found.measurements] == ["ort-cpu", "ort-cpu"]
    assert found.measurements[0].note.startswith("no torch form to compare with: add one")


def test_engine_that_takes_the_process_down_is_left_out(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = """
import os, attnport.validate.latency_child as child
usual = child.open_engine
def open_engine(bundle, kind, **options):
    return os.abort() if kind == "torch-eager" else usual(bundle, kind, **options)
child.open_engine = open_engine
"""
    before, after = latency_process._CHILD.split("from attnport.validate.latency_child")
    monkeypatch.setattr(
        latency_process,
        "_CHILD",
        f"{before}{deadly}from attnport.validate.latency_child{after}",
    )
    found = measured(bundle, "torch-eager", "ort-cpu", module=SmallAttention(weight_of(bundle)))
    assert "died (signal 6)" in found.left_out["torch-eager"]
    assert found.measurements[0].engine == "ort-cpu"


def test_maker_is_called_with_the_source() -> None:
    assert isinstance(make_module("torch.nn:Identity", "registry:mha"), torch.nn.Identity)
    with pytest.raises(UsageError, match=r"as package\.module:function"):
        make_module("no.such.package:function", "")
    with pytest.raises(ModuleError, match="gave str"):
        make_module("builtins:str", "registry:mha")


def test_only_one_way_to_get_the_module(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="give one of them"):
        measured(bundle, "ort-cpu", module=torch.nn.Identity(), module_maker="a:b")
