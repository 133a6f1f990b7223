"""Models of other people, and ours that decode, split over ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shard.making import AXES, ROWS, prove_split
from torch import Tensor, nn

from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models.registry import resolve

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 32}


class Bert(nn.Module):
    """Token ids and a padding mask to the last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        self.model = transformers.BertModel(transformers.BertConfig(**SIZES))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return found


class Llama(nn.Module):
    """Token ids to logits, 4 query and 2 key/value heads."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return found


@pytest.mark.parametrize(("make", "masked"), [(Bert, True), (Llama, False)], ids=["BERT", "Llama"])
def test_transformers(make: Callable[[], nn.Module], masked: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 5))
    args = (ids, torch.ones_like(ids)) if masked else (ids,)
    bundle = export_module(
        make().eval(), args, tmp_path / "whole",
        dynamic_shapes=(ROWS,) * len(args), axes=AXES, max_cases=3,
    )  # fmt: skip
    for ranks in (2, 4):
        engine = prove_split(bundle, ranks, tmp_path / f"on{ranks}")
        of = [one.of for one in engine.sharded.manifest.reductions]
        assert of == ["attn0", "feed_forward0", "attn1", "feed_forward1"]


def _by_name(name: str, out: Path, **sizes: object) -> Bundle:
    spec = resolve(name, sizes)
    return export_module(
        spec.make(), spec.make_args(spec.opt_sizes()), out,
        dynamic_shapes=spec.dynamic_shapes, axes=spec.axes, inputs=spec.roles, max_cases=4,
    )  # fmt: skip


def test_a_language_model_with_caches(tmp_path: Path) -> None:
    """Each rank keeps the rows of its own key/value heads, and gives no others."""
    sizes = {"d_model": 64, "num_heads": 8, "kv_heads": 4, "num_layers": 2, "vocab_size": 32}
    bundle = _by_name("decoder-lm", tmp_path / "whole", **sizes)
    engine = prove_split(bundle, 2, tmp_path / "on2")
    manifest = engine.sharded.manifest
    assert [part.positions for part in manifest.split_inputs] == [((0, 1), (2, 3))] * 4
    assert {part.name for part in manifest.split_outputs} == {
        "present_key_0", "present_value_0", "present_key_1", "present_value_1",
    }  # fmt: skip
    (past,) = (s for s in engine.sharded.rank(1).manifest.inputs if s.name == "past_key_0")
    assert past.shape[1] == 2


@pytest.mark.wide
def test_more_ranks_than_key_value_heads(tmp_path: Path) -> None:
    """8 ranks, 4 key/value heads: each head lies on two ranks."""
    sizes = {"d_model": 64, "num_heads": 8, "kv_heads": 4, "num_layers": 1}
    bundle = _by_name("cached-stack", tmp_path / "whole", **sizes)
    engine = prove_split(bundle, 8, tmp_path / "on8")
    part = engine.sharded.manifest.split_inputs[0]
    assert part.positions == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("decoder-block", ["attn0", "attn1", "feed_forward0"]),
        pytest.param("cross-attention", ["attn0"], marks=pytest.mark.wide),
        pytest.param("attention-stack", ["attn0", "attn1", "attn2", "attn3"], marks=pytest.mark.wide),
        pytest.param("causal-multi-head-masked", ["attn0"], marks=pytest.mark.wide),
        pytest.param("cached-stack-static", ["attn0", "attn1", "attn2", "attn3"], marks=pytest.mark.wide),
        pytest.param("cached-decoder-block", ["attn0", "attn1", "feed_forward0"], marks=pytest.mark.wide),
    ],
)  # fmt: skip
def test_registry(name: str, sums: list[str], tmp_path: Path) -> None:
    bundle = _by_name(name, tmp_path / "whole", d_model=64, num_heads=8)
    engine = prove_split(bundle, 4, tmp_path / "split")
    assert [one.of for one in engine.sharded.manifest.reductions] == sums


def test_the_attention_operator_is_written_out(tmp_path: Path) -> None:
    spec = resolve("multi-head", {"d_model": 32, "num_heads": 4})
    bundle = export_module(
        spec.make(), spec.make_args(spec.opt_sizes()), tmp_path / "whole",
        dynamic_shapes=spec.dynamic_shapes, axes=spec.axes, form="attention", max_cases=2,
    )  # fmt: skip
    prove_split(bundle, 2, tmp_path / "split")
