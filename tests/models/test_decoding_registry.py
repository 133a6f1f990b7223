"""The registry's models with caches: their inputs, axes, sizes, and that they repeat."""

from __future__ import annotations

import pytest
import torch

from attnport.errors import UsageError
from attnport.models.decoding_entries import DECODING
from attnport.models.inputs import ROLES
from attnport.models.registry import resolve
from attnport.models.sources import module_from_source, spec_from_source
from attnport.models.spec import ModelSpec

NAMES = [entry.base for entry in DECODING]
SMALL = {
    "d_model": "16", "num_heads": "2", "num_layers": "2", "vocab_size": "11", "capacity": "9",
}  # fmt: skip
SIZES = {"batch": 2, "seq": 3, "past": 4, "total": 7, "memory": 5}


def small(name: str, **sizes: str) -> ModelSpec:
    types = next(entry for entry in DECODING if entry.base == name).size_types()
    return resolve(name, {key: size for key, size in SMALL.items() if key in types} | sizes)


@pytest.mark.parametrize("name", NAMES)
def test_module_and_arguments_fit_and_repeat(name: str) -> None:
    spec = small(name)
    args = spec.make_args(SIZES)
    assert len(args) == len(spec.dynamic_shapes) == len(spec.roles)
    assert set(spec.roles.values()) <= set(ROLES)
    module = spec.make()
    outputs = module(*args)
    assert all(torch.isfinite(output).all() for output in outputs)
    again = module_from_source(spec.source)(*spec.make_args(SIZES))
    assert all(map(torch.equal, outputs, again))
    assert len(getattr(module, "output_names", outputs)) == len(outputs)
    assert sum(hasattr(part, "attention_form") for part in module.modules()) == spec.attentions


def test_the_total_is_the_sum_whatever_the_ranges() -> None:
    from attnport.axes import Axis

    spec = spec_from_source("cached-stack", SMALL_STACK, (), [Axis("past", 2, 5, 9)])
    assert spec.axes["total"].rule == "total = past + seq"
    assert (spec.axes["total"].min, spec.axes["total"].max) == (3, 9 + spec.axes["seq"].max)


SMALL_STACK = {"d_model": "16", "num_heads": "2", "num_layers": "1"}


def test_no_more_new_tokens_than_a_static_cache_has() -> None:
    assert small("cached-stack-static").axes["seq"].max == 9
    assert "total" not in small("cached-stack-static").axes


def test_options_are_read_and_written_into_the_source() -> None:
    options = {"norm": "rms", "feed_forward": "gated-silu", "theta": "5e5", "tied": "false"}
    spec = small("decoder-lm", **options)
    assert "norm='rms',feed_forward='gated-silu',theta=500000.0,tied=False" in spec.source
    assert (
        module_from_source(spec.source).get_submodule("rotary").extra_repr().endswith("500000.0")
    )


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ({"norm": "batch"}, "norm=batch does not suit 'decoder-lm': give layer or rms"),
        ({"theta": "-1"}, "give a number above 0"),
        ({"kv_heads": "0"}, "give a whole number of 1 or more"),
        ({"tied": "3"}, "give true or false"),
    ],
)
def test_options_of_another_kind_are_refused(sizes: dict[str, str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        small("decoder-lm", **sizes)


def test_a_sum_is_no_range_and_a_range_no_sum() -> None:
    from attnport.axes import parse_axis

    with pytest.raises(UsageError, match="has total = past \\+ seq: give ranges"):
        spec_from_source("cached-stack", SMALL_STACK, (), [parse_axis("total=1:2:3")])
    with pytest.raises(UsageError, match="has seq as a range, not as a sum"):
        spec_from_source("cached-stack", SMALL_STACK, (), [parse_axis("seq=past+1")])


def test_both_halves_of_a_cross_attention_have_the_same_weights() -> None:
    block, once = small("cached-decoder-block").make(), small("cross-keys-values").make()
    for name, weight in once.state_dict().items():
        assert torch.equal(weight, block.state_dict()[f"cross_keys_values.{name}"])
