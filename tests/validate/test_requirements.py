from __future__ import annotations

from pathlib import Path

import pytest

from attnport.errors import UsageError
from attnport.validate.requirements import Requirements


def test_defaults_require_what_can_be_shown() -> None:
    require = Requirements()
    assert require.parity_of("ort-cpu", runnable=True)
    assert not require.parity_of("tensorrt-rtx", runnable=False)
    assert require.fusion_of("tensorrt-rtx", "float16")
    assert require.causal_of("tensorrt-rtx", "float16")
    assert not require.fusion_of("tensorrt-rtx", "float32")
    assert not require.fusion_of("ort-cpu", "float16")
    assert require.kinds() == ()


def test_what_is_named_is_required_here_and_now() -> None:
    require = Requirements(parity=("ort-cpu",), parity_where_available=("tensorrt-rtx",))
    assert require.parity_of("ort-cpu", runnable=False)
    assert require.parity_of("tensorrt-rtx", runnable=True)
    assert not require.parity_of("tensorrt-rtx", runnable=False)
    assert not require.parity_of("torch-eager", runnable=True)
    assert require.kinds() == ("ort-cpu", "tensorrt-rtx")


def test_fusion_that_is_named_is_required_in_every_dtype() -> None:
    require = Requirements(fusion=("tensorrt-rtx",), causal=False)
    assert require.fusion_of("tensorrt-rtx", "float32")
    assert not require.causal_of("tensorrt-rtx", "float16")


def test_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "require.yaml"
    file.write_text(
        "parity: [ort-cpu]\nqkv: false\nfusion: where kernels exist\nkernels: {tensorrt-rtx: 5}\n"
    )
    assert Requirements.load(file) == Requirements(
        parity=("ort-cpu",), qkv=False, kernels={"tensorrt-rtx": 5}
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"fussion": []},
            "'fussion' (did you mean 'fusion'?) is not a requirement; valid: parity",
        ),
        (
            {"fussion": [], "out": "build", "qkw": True},
            "'fussion' (did you mean 'fusion'?), 'out', 'qkw' (did you mean 'qkv'?) are not "
            "requirements; valid: parity",
        ),
        ({"parity": ["ort-cpuu"]}, "did you mean 'ort-cpu'?"),
        ({"parity": "ort-cpu"}, "give a list of kinds, [ort-cpu]"),
        ({"parity": "where kernels exist"}, "parity"),
        ({"fusion": ["ort-cpu"]}, "'ort-cpu' has no plan that tells of its kernels"),
        ({"kernels": {"tensorrt-rtx": -1}}, "kernels"),
        ({"kernels": {"ort-cpu": 3}}, "valid: tensorrt, tensorrt-rtx"),
        ({"qkv": "maybe"}, "qkv"),
    ],
)
def test_mistakes_are_refused_with_what_is_valid(content: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Requirements.from_mapping(content)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("valid: ") <= 1


@pytest.mark.parametrize("text", ["- parity", "just words", "a: [", ""])
def test_files_that_hold_no_requirements(tmp_path: Path, text: str) -> None:
    file = tmp_path / "require.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"require\.yaml"):
        Requirements.load(file)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Requirements.load(tmp_path / "none.yaml")
