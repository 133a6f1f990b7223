"""What exporters were reported to get wrong: here the numbers are right, and TensorRT builds it.

In the default suite one case of each kind, in half precision; `make cases` runs all of them in every
dtype.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from tests.cases.bare import BARE
from tests.cases.by_hand import BY_HAND
from tests.cases.caches import CACHES
from tests.cases.road import Case, build, export, fusion_of, require_right_numbers
from tests.cases.torch_modules import TORCH_MODULES

from attnport.export.bundle import Bundle

# One of each kind that stock exporters get wrong today, and that costs little to look at.
ALWAYS = {
    "causal-fewer-queries",
    "bool-mask-dead-row",
    "three-dimensions",
    "fast-path",
    "rotary-interleaved",
    "mask-from-lengths",
}
CASES = (*BARE, *TORCH_MODULES, *BY_HAND, *CACHES)


def _asked(case: Case, dtype: str) -> ParameterSet:
    always = case.name in ALWAYS and dtype == "float16"
    marks = [] if always else [pytest.mark.wide]
    return pytest.param(case, dtype, id=f"{case.name}-{dtype}", marks=marks)


@pytest.mark.parametrize(
    ("case", "dtype"), [_asked(case, dtype) for case in CASES for dtype in case.dtypes]
)
def test_right_numbers_and_a_plan(case: Case, dtype: str, tmp_path: Path) -> None:
    bundle = export(case, dtype, tmp_path)
    require_right_numbers(case, bundle)
    plan = build(bundle)
    assert fusion_of(plan).kernel_count > 0


@pytest.mark.wide
def test_weights_beside_the_graph_move_with_it(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "weights-beside")
    bundle = export(case, "float32", tmp_path)
    assert (bundle.path / "model.onnx.data").stat().st_size > 1 << 20
    moved = Bundle.load(shutil.move(bundle.path, tmp_path / "elsewhere"))
    require_right_numbers(case, moved)


def test_names_are_told_apart() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(names) >= ALWAYS
