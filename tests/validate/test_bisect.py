"""`bisect` names the node that a fault was planted in, with the line of the module it is from."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.validate.mutants.graph_edit import Edit
from tests.validate.mutants.graph_faults import GRAPH_FAULTS
from tests.validate.mutants.subjects import SUBJECTS, exported, module_of
from tests.validate.mutants.weight_faults import WEIGHT_FAULTS

from attnport.engines.build import build_engine
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.validate.bisect import bisect
from attnport.validate.bisection import Bisection
from attnport.validate.cut_bundle import cut
from attnport.validate.fingerprint import fingerprint
from attnport.validate.graph_taps import in_groups, taps_of

FAULTS = {**GRAPH_FAULTS, **WEIGHT_FAULTS}


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(SUBJECTS["masked"], "float32", tmp_path_factory.mktemp("masked"))


def broken(bundle: Bundle, fault: str, folder: Path) -> Bundle:
    """The bundle with a fault in its graph, as a pass that is wrong would leave it."""
    edit = Edit(onnx.load(bundle.model_path))
    assert FAULTS[fault](edit)
    folder.mkdir()
    onnx.save(edit.model, folder / "model.onnx")
    for name in ("cases",):
        (folder / name).symlink_to(bundle.path / name)
    return replace(bundle, path=folder)


def found_in(bundle: Bundle, fault: str, folder: Path) -> Bisection:
    module = module_of(SUBJECTS["masked"], 1)
    return bisect(broken(bundle, fault, folder), "ort-cpu", module, case="between-random")


def test_nothing_leaves_its_bound_in_a_good_bundle(masked: Bundle) -> None:
    found = bisect(masked, "ort-cpu", module_of(SUBJECTS["masked"], 1))
    assert found.side == "", found.message
    assert "nothing leaves its bound" in found.message


@pytest.mark.parametrize(
    ("fault", "node"),
    [
        ("scale doubled", "/attn0/scores"),
        ("mask ignored", "/attn0/softmax"),
        ("mask shifted by one", "/attn0/masked"),
        ("heads reversed", "/attn0/context"),
    ],
)
def test_the_node_with_the_fault_is_named(
    masked: Bundle, fault: str, node: str, tmp_path: Path
) -> None:
    found = found_in(masked, fault, tmp_path / "broken")
    assert found.side == "graph"
    assert node in found.node + found.tensor, found.message
    assert found.line, found.message


def test_the_line_is_one_of_the_module(masked: Bundle, tmp_path: Path) -> None:
    found = found_in(masked, "W_O transposed", tmp_path / "broken")
    file, _, number = found.line.rpartition(":")
    lines = Path(file).read_text("utf-8").splitlines()
    assert 0 < int(number) <= len(lines)
    assert found.path == "W_O"
    assert found.operator == "MatMul"
    assert Path(file).name == "attention.py"
    assert "from W_O" in found.message


def test_an_engine_that_is_not_the_graph_is_found(
    masked: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnport.engines.ort_engine import OrtEngine

    run = OrtEngine.run

    def spoiled(self: OrtEngine, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = run(self, feeds)
        if "/attn0/context" in outputs:
            outputs["/attn0/context"] = outputs["/attn0/context"] + np.float32(0.01)
        return outputs

    monkeypatch.setattr(OrtEngine, "run", spoiled)
    found = bisect(masked, "ort-cpu", module_of(SUBJECTS["masked"], 1), case="between-random")
    assert (found.side, found.tensor) == ("engine", "/attn0/context")
    assert "its bound is" in found.message


def test_tensors_are_read_within_the_budget(masked: Bundle) -> None:
    case = masked.load_case("between-random")
    taps = taps_of(onnx.load(masked.model_path), case.inputs)
    largest = max(tap.nbytes for tap in taps)
    groups = list(in_groups(taps, 2 * largest))
    assert [tap for group in groups for tap in group] == taps
    assert len(groups) > 1
    assert all(sum(tap.nbytes or largest for tap in group) <= 2 * largest for group in groups)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed"
)
def test_what_lies_before_a_cut_is_still_fused(tmp_path: Path) -> None:
    bundle = exported(SUBJECTS["causal"], "float16", tmp_path)
    model = onnx.load(bundle.model_path)
    inputs = bundle.load_case("between").inputs
    tap = next(t for t in taps_of(model, inputs) if t.name == "/attn0/context")
    plan = build_engine(cut(bundle, model, [tap], tmp_path / "cut"), "tensorrt-rtx")
    assert plan.fusion is not None
    assert any(layer.name.startswith("_gemm_mha") for layer in plan.fusion.layers)


def test_engines_without_a_graph_and_bundles_without_cases_are_refused(masked: Bundle) -> None:
    module = module_of(SUBJECTS["masked"], 1)
    with pytest.raises(UsageError, match="has no graph to bisect"):
        bisect(masked, "torch-eager", module)
    empty = replace(masked, manifest=masked.manifest.model_copy(update={"cases": ()}))
    with pytest.raises(UsageError, match="holds no case to bisect with"):
        bisect(empty, "ort-cpu", module)


def test_fingerprints_know_a_permutation_from_other_numbers() -> None:
    array = np.random.default_rng(0).standard_normal((3, 4, 5))
    limit = float(np.sqrt(np.finfo(np.float64).eps * np.finfo(np.float32).eps))
    here = fingerprint(array)
    turned = fingerprint(np.ascontiguousarray(array.transpose(1, 0, 2)))
    assert here.same_numbers(turned, limit)
    reversed_ = fingerprint(array[::-1])
    assert here.same_numbers(reversed_, limit)
    assert not here.same_order(reversed_, limit)
    assert not here.same_numbers(fingerprint(array * (1 + 1e-6)), limit)
