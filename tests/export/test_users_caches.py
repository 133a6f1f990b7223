"""transformers' own Llama and GPT-2 with a past, exported by way of a wrapper of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from attnport.axes import AxisLike
from attnport.engines.build import build_engine
from attnport.engines.build_options import BuildOptions
from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle
from attnport.export.export_module import export_module
from attnport.models.spec import seeded
from attnport.validate.parity import check_parity

VOCABULARY, LAYERS, HEADS, SIZE = 50, 2, 4, 16
AXES: dict[str, AxisLike] = {
    "batch": (1, 2, 3), "seq": (1, 4, 8), "past": (0, 6, 9), "total": "past + seq",
}  # fmt: skip
KV_HEADS = {"llama": 2, "gpt2": HEADS}


class WithPast(nn.Module):
    """A causal language model of transformers whose caches are tensors, in and out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        pairs = [f"{what}_{i}" for i in range(LAYERS) for what in ("key", "value")]
        self.input_names = ("token_ids", "positions", "mask", *(f"past_{p}" for p in pairs))
        self.output_names = ("logits", *(f"present_{p}" for p in pairs))

    def forward(
        self, token_ids: Tensor, positions: Tensor, mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """(B,N), (B,N), (B,N,T) bool, and (B,Hkv,P,Dh) twice a layer."""
        cache: Any = transformers.DynamicCache()
        for layer in range(LAYERS):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(
            token_ids, position_ids=positions, attention_mask=mask[:, None], cache=cache
        )
        return (out.logits, *(t for one in cache.layers for t in (one.keys, one.values)))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * SIZE, intermediate_size=48,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=HEADS * SIZE, n_layer=LAYERS, n_head=HEADS, n_positions=64,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "gpt2": gpt2}


def exported(name: str, dtype: str, out: Path, **options: Any) -> Bundle:
    module = WithPast(seeded(MODELS[name])).eval()
    batch, new, past = 2, 3, 5
    cache = torch.zeros(batch, KV_HEADS[name], past, SIZE)
    ids, at = torch.zeros(batch, new, dtype=torch.int64), torch.arange(past, past + new)
    mask = torch.ones(batch, new, past + new, dtype=torch.bool)
    tokens = {0: "batch", 1: "seq"}
    return export_module(
        module,
        (ids, at.expand(batch, new), mask, *[cache] * 2 * LAYERS),
        out,
        dynamic_shapes=(
            tokens, tokens, {**tokens, 2: "total"}, *[{0: "batch", 2: "past"}] * 2 * LAYERS,
        ),
        axes=AXES,
        dtype=dtype,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_it_has_caches_the_same_numbers_and_fuses(name: str, tmp_path: Path) -> None:
    bundle = exported(name, "float16", tmp_path / "b", max_cases=5)
    manifest = bundle.manifest
    assert [(c.input, c.output, c.kind, c.axis) for c in manifest.caches] == [
        (f"past_{what}_{i}", f"present_{what}_{i}", "concat", 2)
        for i in range(LAYERS)
        for what in ("key", "value")
    ]
    assert [spec.role for spec in manifest.inputs[:4]] == [
        "token_ids", "positions", "mask", "cache",
    ]  # fmt: skip
    assert all(one.recognised and one.mask == "bool" for one in manifest.attentions)
    assert [(one.heads, one.kv_heads) for one in manifest.attentions] == [
        (HEADS, KV_HEADS[name])
    ] * LAYERS  # fmt: skip
    assert all(group.kind == "qkv" and group.merged for group in manifest.projection_groups)
    with open_engine(bundle, "ort-cpu") as engine:
        cases = [bundle.load_case(case.name) for case in manifest.cases]
        findings = [one for case in cases for one in check_parity(engine, bundle, case)]
    assert {finding.status for finding in findings} == {"passed"}
    pytest.importorskip("tensorrt_rtx", reason="builds with TensorRT for RTX")
    profiles = ({"seq": (1, 4, 8)}, {"seq": (1, 1, 1)})
    plan = build_engine(bundle, "tensorrt-rtx", options=BuildOptions(profiles=profiles))
    assert plan.fusion is not None
    kernels = [(one.profile, str(one.kernel)[:9]) for one in plan.fusion.attentions if one.fused]
    assert sorted(kernels) == [(0, "_gemm_mha")] * LAYERS + [(1, "_gemv_mha")] * LAYERS
