from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from attnport.errors import ModuleError, UsageError
from attnport.models.decoding_entries import DECODING
from attnport.models.inputs import ROLES
from attnport.models.registry import REGISTRY, model_names, resolve
from attnport.models.sources import module_from_source
from attnport.models.spec import ModelSpec

# Those with caches have tests of their own: test_decoding_registry.
CACHED = {entry.base for entry in DECODING}
BASES = sorted({entry.base for entry in REGISTRY.values()} - CACHED)
NAMES = [name for name in model_names() if REGISTRY[name].base not in CACHED]
SMALL = {"d_model": "16", "num_heads": "2", "num_layers": "2"}


def small(name: str) -> ModelSpec:
    types = REGISTRY[name].size_types()
    return resolve(name, {key: size for key, size in SMALL.items() if key in types})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_resolves(name: str) -> None:
    spec = resolve(name)
    entry = REGISTRY[name]
    assert spec.name == name
    assert spec.source.startswith(f"registry:{entry.base}{{d_model=")
    assert spec.attentions == {"decoder": 2, "attention-stack": 4}.get(
        entry.base.removesuffix("-block").removesuffix("-masked"), 1
    )
    assert set(spec.roles.values()) <= set(ROLES)
    assert spec.summary
    assert spec.axes["batch"].max == (4 if "4096" in name else 8)


@pytest.mark.parametrize("name", BASES)
def test_module_and_arguments_fit_and_repeat(name: str) -> None:
    spec = small(name)
    sizes = {"batch": 2, "seq": 3, "memory": 5}
    args = spec.make_args(sizes)
    assert len(args) == len(spec.dynamic_shapes) == len(spec.roles)
    for arg, shape in zip(args, spec.dynamic_shapes, strict=True):
        assert shape is not None
        assert all(arg.size(dim) == sizes[axis] for dim, axis in shape.items())
    module = spec.make()
    assert not module.training
    output = module(*args)
    assert output.shape == (2, 3, 16)
    assert torch.isfinite(output).all()
    assert torch.equal(module_from_source(spec.source)(*spec.make_args(sizes)), output)
    assert sum(hasattr(part, "attention_form") for part in module.modules()) == spec.attentions


def test_making_a_module_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    small("multi-head").make()
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("form", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BASES)
def test_capture_keeps_the_declared_ranges(name: str, form: str) -> None:
    spec = small(name)
    module = spec.make()
    for part in module.modules():
        if hasattr(part, "attention_form"):
            setattr(part, "attention_form", form)  # noqa: B010
    dims = {name: Dim(name, min=1, max=axis.max) for name, axis in spec.axes.items()}
    shapes = tuple({i: dims[a] for i, a in (s or {}).items()} for s in spec.dynamic_shapes)
    args = spec.make_args({"batch": 2, "seq": 3, "memory": 5})
    program = torch.export.export(module, args, dynamic_shapes=shapes)
    ranges = sorted((int(r.lower), int(r.upper)) for r in program.range_constraints.values())
    assert ranges == sorted((1, axis.max) for axis in spec.axes.values())
    smallest = spec.make_args({"batch": 1, "seq": 1, "memory": 1})
    assert torch.equal(program.module()(*smallest), module(*smallest))


@pytest.mark.parametrize(
    "mask_axes", [{0: 2, 3: 3}, {0: 2, 2: 3, 3: 3}, {2: 3, 3: 3}, None], ids=str
)
@pytest.mark.parametrize("name", ["multi-head", "causal-multi-head"])
def test_capture_with_free_dimensions_binds_none(
    name: str, mask_axes: dict[int, int] | None
) -> None:
    if mask_axes is None:
        mask, free = torch.ones(3, 3), {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    else:
        mask = torch.ones([mask_axes.get(dim, 1) for dim in range(4)])
        free = dict.fromkeys(mask_axes, Dim.DYNAMIC)
    x = torch.randn(2, 3, 16)
    program = torch.export.export(
        small(name).make(), (x, mask), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, free)
    )
    assert len(program.range_constraints) == 2
    for found in program.range_constraints.values():
        assert int(found.lower) <= 2  # 2 is what torch calls "any" for a size that is not 1 or 0
        assert str(found.upper) == "int_oo"


def test_sizes_are_read_and_written_into_the_source() -> None:
    spec = resolve("encoder-block", {"d_model": "32", "num_heads": "4", "norm_first": "true"})
    assert spec.source == "registry:encoder-block{d_model=32,num_heads=4,norm_first=True}"
    module = module_from_source(spec.source)
    assert module.get_submodule("feed_forward.W_1").weight.shape == (128, 32)
    assert "norm_first=True" in repr(module)
    stack = resolve("attention-stack", {"num_layers": "3", "causal": "true", "d_model": "16"})
    assert stack.attentions == 3


@pytest.mark.parametrize(
    ("name", "sizes", "part"),
    [
        ("multihead", {}, r"did you mean multi-head .*`attnport models`"),
        ("multi-head", {"heads": "8"}, "it takes d_model, num_heads, bias"),
        ("multi-head", {"d_model": "wide"}, "whole number"),
        ("multi-head", {"d_model": "true"}, "whole number"),
        ("multi-head", {"bias": "1"}, "true or false"),
        ("multi-head-512-8", {"d_model": "256"}, "use 'multi-head'"),
    ],
)
def test_what_is_unknown_is_refused(name: str, sizes: dict[str, str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        resolve(name, sizes)


def test_sizes_that_do_not_fit_each_other_are_refused_at_once() -> None:
    with pytest.raises(ModuleError, match="not divisible"):
        resolve("multi-head", {"num_heads": "7"})
