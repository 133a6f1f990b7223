"""Models from text: registry names, importable factories, users' own files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from attnport.axes import Axis
from attnport.errors import AttnportError, ModuleError, UsageError
from attnport.models.sources import module_from_source, spec_from_source

AXES = (Axis("batch", 1, 2, 8), Axis("seq", 1, 16, 64))
ENCODER_LAYER = "torch.nn:TransformerEncoderLayer"
LAYER_SIZES = {"d_model": "16", "nhead": "2", "batch_first": "true", "activation": "gelu"}

USER_FILE = """
import torch
from torch import nn

from attnport.axes import Axis
from attnport.models.spec import ModelSpec
from helper_beside import WIDTH


class Mine(nn.Module):
    def __init__(self, d_model=WIDTH):
        super().__init__()
        self.layer = nn.Linear(d_model, d_model)

    def forward(self, x, scale=None):
        return self.layer(x) if scale is None else self.layer(x) * scale


def with_args(d_model=WIDTH):
    return Mine(d_model), (torch.arange(2.0 * 3 * d_model).view(2, 3, d_model),)


def with_shapes(d_model=WIDTH):
    return (*with_args(d_model), ({0: "batch", 1: "seq"},))


def with_spec(d_model=WIDTH):
    return ModelSpec(
        name="mine",
        source="somewhere",
        make=lambda: Mine(d_model).eval(),
        make_args=lambda sizes: (torch.ones(sizes["rows"], d_model),),
        dynamic_shapes=({0: "rows"},),
        axes={"rows": Axis("rows", 1, 2, 4)},
        attentions=0,
    )


def raises():
    raise RuntimeError("no weights\\nsecond line")


def gives_text():
    return "a module"


def gives_number_as_argument():
    return Mine(), (torch.ones(1, WIDTH), 3)


def gives_wrong_shapes():
    return Mine(), (torch.ones(1, WIDTH),), ({5: "batch"},)


not_callable = 3
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    (tmp_path / "helper_beside.py").write_text("WIDTH = 8\n")
    path = tmp_path / "my-model.py"
    path.write_text(USER_FILE)
    return path


@pytest.mark.parametrize(
    "text", ["multi-head{d_model=16,num_heads=2}", "registry:multi-head{d_model=16,num_heads=2}"]
)
def test_a_registry_name_with_its_own_axes_and_others(text: str) -> None:
    assert spec_from_source(text).axes["seq"].max == 512
    spec = spec_from_source(text, {"bias": "true"}, axes=[Axis("seq", 1, 4, 32)])
    assert spec.source == "registry:multi-head{d_model=16,num_heads=2,bias=True}"
    assert (spec.axes["seq"].max, spec.axes["batch"].max) == (32, 8)


def test_torchs_multihead_attention_by_forwards_names() -> None:
    spec = spec_from_source(
        "torch.nn:MultiheadAttention",
        {"embed_dim": "16", "num_heads": "2", "batch_first": "True"},
        [f"{name}:float32[batch,seq,16]" for name in ("query", "key", "value")],
        AXES,
    )
    assert spec.dynamic_shapes == ({0: "batch", 1: "seq"},) * 3
    output, _ = spec.make()(*spec.make_args(spec.opt_sizes()))
    assert output.shape == (2, 16, 16)


def test_torchs_encoder_layer_is_made_again_from_its_source() -> None:
    inputs = ["src:float32[batch, seq, 16]", "src_mask:bool[seq,seq]=mask"]
    spec = spec_from_source(ENCODER_LAYER, LAYER_SIZES, inputs, AXES)
    assert spec.name == "TransformerEncoderLayer"
    assert spec.roles == {"src_mask": "mask"}
    assert spec.source == (
        f"{ENCODER_LAYER}{{d_model=16,nhead=2,batch_first=True,activation='gelu'}}"
    )
    first, again = spec.make().state_dict(), module_from_source(spec.source).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_a_class_in_the_users_file(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user_file.parent)
    path_before = list(sys.path)
    spec = spec_from_source("my-model.py:Mine", {"d_model": "4"}, ["x:float32[batch,4]"], AXES[:1])
    monkeypatch.chdir("/")
    assert spec.source == f"{user_file}:Mine{{d_model=4}}"
    assert module_from_source(spec.source)(torch.ones(3, 4)).shape == (3, 4)
    assert type(module_from_source(spec.source)) is type(spec.make())
    assert not spec.make().training
    assert sys.path == path_before


def test_an_edited_file_is_loaded_again(user_file: Path) -> None:
    source = f"{user_file}:Mine"
    assert module_from_source(source)(torch.ones(1, 8)).shape == (1, 8)
    user_file.write_text(USER_FILE.replace("d_model=WIDTH", "d_model=5"))
    assert module_from_source(source)(torch.ones(1, 5)).shape == (1, 5)


def test_a_factory_with_example_arguments(user_file: Path) -> None:
    fixed = spec_from_source(f"{user_file}:with_args")
    assert (fixed.dynamic_shapes, fixed.axes) == ((None,), {})
    assert fixed.make_args({})[0].shape == (2, 3, 8)

    spec = spec_from_source(f"{user_file}:with_shapes", axes=AXES)
    assert spec.dynamic_shapes == ({0: "batch", 1: "seq"},)
    (bigger,) = spec.make_args({"batch": 1, "seq": 5})
    assert torch.equal(bigger[:, 3:], bigger[:, :2])
    assert spec.make()(bigger).shape == (1, 5, 8)


def test_a_factory_that_gives_a_spec(user_file: Path) -> None:
    spec = spec_from_source(
        f"{user_file}:with_spec", {"d_model": "4"}, axes=[Axis("rows", 1, 1, 2)]
    )
    assert (spec.name, spec.source) == ("mine", f"{user_file}:with_spec{{d_model=4}}")
    assert spec.axes["rows"].max == 2
    assert module_from_source(spec.source)(*spec.make_args({"rows": 2})).shape == (2, 4)


@pytest.mark.parametrize(
    ("attribute", "error", "part"),
    [
        ("Mime", UsageError, "did you mean Mine"),
        ("not_callable", UsageError, "cannot be called"),
        ("raises", ModuleError, "raised RuntimeError: no weights:"),
        ("gives_text", ModuleError, "returned str, not a module"),
        ("gives_number_as_argument", ModuleError, "'int' as example argument 1"),
        ("gives_wrong_shapes", ModuleError, r"\{5: 'batch'\} for argument 0 of shape \(1, 8\)"),
        ("with_shapes", UsageError, "--axis batch=1:2:8 --axis seq=1:128:512"),
        ("with_shapes{width=3}", UsageError, "does not take width: it takes d_model"),
    ],
)
def test_wrong_things_in_a_users_file(
    user_file: Path, attribute: str, error: type[AttnportError], part: str
) -> None:
    with pytest.raises(error, match=part) as caught:
        spec_from_source(f"{user_file}:{attribute}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [("import nowhere_to_be_found", "ModuleNotFoundError"), ("def f(:", "SyntaxError")],
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, content: str, part: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(content)
    with pytest.raises(UsageError, match=rf"broken.py cannot be loaded \({part}") as caught:
        spec_from_source(f"{path}:f")
    assert caught.value.__cause__ is not None
    assert not [name for name in sys.modules if "broken" in name and "attnport_user" in name]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("my_model.py", "write package.module:factory or path.py:factory"),
        ("nowhere/my_model.py:make", "is not a file"),
        ("no_such_package.models:make", "cannot be imported"),
        ("torch.nn:TransformerEncoderLayr", "did you mean TransformerEncoderLayer"),
        ("torch.nn:Linear{in_features=}", "cannot be read"),
        ("torch.nn:Linear{3}", "cannot be read"),
        ("torch.nn:Linear{in_features=4}", "needs out_features"),
    ],
)
def test_sources_that_mean_nothing(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        spec_from_source(text)


@pytest.mark.parametrize(
    ("inputs", "axes", "part"),
    [
        ([], AXES, "needs src.*--input 'src:float32"),
        (["src:float32[batch,seq,16]"], AXES[:1], "add --axis seq=1:128:512"),
        (["src:float32[batch,4,16]"], AXES, "no input of .* has the axis seq"),
        (["x:float32[batch,seq,16]"], AXES, "needs src"),
        (
            ["src:float32[batch,seq,16]", "src_key_padding_mask:bool[batch,seq]"],
            AXES,
            r"forward\(src, src_mask, src_key_padding_mask",
        ),
        (["src:float99[batch,seq,16]"], AXES, "unknown dtype 'float99'"),
        (["src:float32[batch,seq,16]=picture"], AXES, "unknown role 'picture'"),
        (["src:float32[batch,2*seq]"], AXES, r"dimension '2\*seq'"),
        (["src=float32"], AXES, "not of the form"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Sequence[str], axes: Sequence[Axis], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        spec_from_source(ENCODER_LAYER, LAYER_SIZES, inputs, axes)


def test_what_has_its_own_inputs_and_axes_takes_no_others(user_file: Path) -> None:
    for text in ("multi-head", f"{user_file}:with_args", f"{user_file}:with_spec"):
        with pytest.raises(UsageError, match="has its own inputs"):
            spec_from_source(text, inputs=["x:float32[2]"])
    with pytest.raises(UsageError, match="has no axis 'memory': it has batch, seq"):
        spec_from_source("multi-head", axes=[Axis("memory", 1, 1, 1)])
    with pytest.raises(UsageError, match="give it once"):
        spec_from_source("multi-head{d_model=16}", {"d_model": "32"})
    with pytest.raises(UsageError, match="no size was given for seq"):
        spec_from_source("multi-head").make_args({"batch": 1})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "uint8", "bool"])
def test_examples_have_the_dtype_and_stay_small(dtype: str) -> None:
    spec = spec_from_source("torch.nn:Identity", {}, [f"input:{dtype}[batch,4]"], AXES[:1])
    (example,) = spec.make_args({"batch": 3})
    assert str(example.dtype) == f"torch.{dtype}"
    assert example.shape == (3, 4)
    if not dtype.endswith("float16"):
        assert set(example.int().flatten().tolist()) <= {0, 1}
