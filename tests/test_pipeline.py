"""Pipeline files: what is read from them, and what is refused before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from attnport.errors import UsageError
from attnport.pipeline import Pipeline, load_pipeline, runs_of

SMALL: dict[str, Any] = {
    "out": "build/small",
    "engines": ["ort-cpu"],
    "models": [{"model": "multi-head", "set": {"d_model": 32, "num_heads": 2}}],
}


def _pipeline(**changes: Any) -> Pipeline:
    return Pipeline.model_validate({**SMALL, **changes})


def _file(folder: Path, content: object) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


def test_one_run_for_each_model_and_dtype() -> None:
    model = {**SMALL["models"][0], "dtypes": ["float32", "float16", "float16"]}
    runs = runs_of(_pipeline(models=[model, {"model": "single-head"}]))
    assert [(run.name, run.dtype, run.folder.name) for run in runs] == [
        ("multi-head", "float32", "multi-head-float32"),
        ("multi-head", "float16", "multi-head-float16"),
        ("single-head", "float32", "single-head-float32"),
    ]
    assert runs[0].spec.source == "registry:multi-head{d_model=32,num_heads=2}"


def test_sizes_may_be_words_numbers_and_truths() -> None:
    model = {"model": "multi-head", "set": {"d_model": 32, "num_heads": 2, "bias": True}}
    (run,) = runs_of(_pipeline(models=[model]))
    assert "bias=True" in run.spec.source


def test_axes_replace_those_of_the_model() -> None:
    (run,) = runs_of(_pipeline(models=[{"model": "multi-head", "axes": {"seq": [1, 4, 8]}}]))
    assert run.spec.axes["seq"].max == 8


def test_an_axis_may_be_the_sum_of_others(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from torch import nn\n\n\nclass Both(nn.Module):\n"
        "    def forward(self, old, mask):\n        return old.sum() + mask.sum()\n"
    )
    inputs = ["old:float32[past,4]", "mask:float32[seq,total]"]
    axes = {"past": [0, 2, 4], "seq": [1, 2, 3], "total": "past + seq"}
    model = {"model": f"{mine}:Both", "inputs": inputs, "axes": axes}
    (run,) = runs_of(_pipeline(models=[model]))
    assert run.spec.axes["total"].rule == "total = past + seq"
    assert run.spec.axes["total"].max == 7
    wrong = {**model, "axes": {**axes, "total": "past * seq"}}
    with pytest.raises(UsageError, match=r"models\[0\]: axis 'total' .*\+ and - between them"):
        runs_of(_pipeline(models=[wrong]))
    short = {**SMALL, "models": [{**model, "axes": {"past": [0, 2]}}]}
    with pytest.raises(UsageError, match=r"axes\.past\.min:opt:max\[2\] is missing"):
        load_pipeline(_file(tmp_path, short))


def test_profiles_are_read_as_build_reads_them() -> None:
    model = {"model": "multi-head", "profiles": ["seq=2:16:64", "batch=1,seq=1"]}
    (run,) = runs_of(_pipeline(models=[model]))
    assert run.options is not None
    assert run.options.profiles == (
        {"seq": (2, 16, 64)},
        {"batch": (1, 1, 1), "seq": (1, 1, 1)},
    )


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("tokens=1", "profile 0 gives the axis 'tokens', which the bundle has not"),
        ("seq=1:2:9999", "profile 0 takes seq from 1 to 9999, and the bundle"),
        ("seq=a", "is not of the form name=min:opt:max"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(profile: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        runs_of(_pipeline(models=[{"model": "multi-head", "profiles": [profile]}]))


def test_requirements_of_file_model_and_dtype_add_up() -> None:
    model = {
        "model": "multi-head",
        "dtypes": ["float32", "float16"],
        "require": {"qkv": False},
        "require_in": {"float16": {"kernels": {"tensorrt-rtx": 5}}},
    }
    low, half = runs_of(_pipeline(require={"parity": ["ort-cpu"]}, models=[model]))
    assert low.require.parity == half.require.parity == ("ort-cpu",)
    assert not low.require.qkv
    assert (low.require.kernels, half.require.kernels) == ({}, {"tensorrt-rtx": 5})


def test_engines_of_a_model_replace_those_of_the_file() -> None:
    (run,) = runs_of(_pipeline(models=[{"model": "multi-head", "engines": ["torch-eager"]}]))
    assert run.engines == ("torch-eager",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**SMALL, "engine": []}, r"engine is no key.*did you mean 'engines'\?.*valid here: out,"),
        ({**SMALL, "models": [{"model": "a", "dtype": "x"}]}, r"models\[0\]\.dtype is no key.*'dtypes'"),
        ({**SMALL, "models": [{"model": "a", "sizes": {}}]}, r"sizes is no key.*set"),
        ({**SMALL, "latency": {"second": 1}}, r"latency\.second is no key.*valid here: seconds"),
        ({**SMALL, "models": []}, r"models is .*at least 1"),
        ({**SMALL, "models": [{"model": "a", "dtypes": ["int8"]}]}, r"dtypes\[0\] is 'int8'.*'float32'"),
        ({"out": "x", "engines": ["ort-cpu"]}, r"models is missing"),
        (["a list"], r"holds no pipeline: give out, engines, models"),
    ],
)  # fmt: skip
def test_what_no_pipeline_holds_is_refused(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_pipeline(_file(tmp_path, content))


@pytest.mark.parametrize("text", ["out: [", "\x00"])
def test_what_is_not_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match="cannot be read as YAML"):
        load_pipeline(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": [{"model": "multi-haed"}]}, r"models\[0\]: no model.*multi-head"),
        ({"engines": ["ort-cup"]}, r"no engine 'ort-cup'"),
        ({"models": [{"model": "multi-head", "axes": {"sequence": [1, 2, 3]}}]}, r"no axis"),
        ({"models": [{"model": "multi-head", "axes": {"seq": [3, 2, 1]}}]}, r"min <= opt"),
        ({"require": {"parityy": ["ort-cpu"]}}, r"models\[0\]: require: 'parityy'"),
        ({"models": SMALL["models"] * 2}, r"multi-head-float32: give each a `name`"),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_runs(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        runs_of(_pipeline(**changes), "the file")


def test_demo_is_a_pipeline() -> None:
    demo = load_pipeline(Path(__file__).parent.parent / "examples" / "demo.yaml")
    runs = runs_of(demo)
    assert {run.dtype for run in runs} == {"float32", "float16"}
    assert all(run.require.parity == ("ort-cpu",) for run in runs)
    assert all(run.require.parity_where_available == ("tensorrt-rtx",) for run in runs)
