"""Encoders of text, from `transformers`."""

from __future__ import annotations

from typing import Any

from benchmarks.zoo import wrappers
from benchmarks.zoo.architecture import (
    BATCH,
    SEQ,
    VOCABULARY,
    Architecture,
    D,
    H,
    seeded,
    token_ids,
    visible,
)
from torch import nn

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": 2 * D,
    "max_position_embeddings": 64,
}
_SELF = "two layers with a self-attention each; query, key and value project one tensor"
_PACKED = "two layers with a self-attention each; one matrix holds query, key and value already"


def _encoder(
    name: str,
    model: str,
    why: str = _SELF,
    *,
    groups: int = 2,
    padded: bool = True,
    sizes: dict[str, Any] | None = None,
    dead_rows: int | None = None,
    seq: tuple[int, int, int] = SEQ,
    uncapturable: str = "",
    **more: Any,
) -> Architecture:
    """An entry; dead rows are possible where a padding mask hides keys with False."""

    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, model)
        made = cls(cls.config_class(**((_SIZES if sizes is None else sizes) | more)))
        return wrappers.PaddedIds(made) if padded else wrappers.Ids(made)

    shape = {0: "batch", 1: "seq"}
    return Architecture(
        name,
        "text encoders",
        seeded(make),
        (lambda: (token_ids(), visible())) if padded else lambda: (token_ids(),),
        (shape, shape) if padded else (shape,),
        attentions=2,
        groups=groups,
        why=why,
        uncapturable=uncapturable,
        axes={"batch": BATCH, "seq": seq},
        dead_rows=(2 if padded else 0) if dead_rows is None else dead_rows,
    )


ENCODERS = (
    _encoder("bert", "BertModel"),
    _encoder("bert-unpadded", "BertModel", padded=False),
    _encoder("bert-eager", "BertModel", attn_implementation="eager", dead_rows=0),
    _encoder("roberta", "RobertaModel"),
    _encoder(
        "distilbert",
        "DistilBertModel",
        sizes={
            "vocab_size": VOCABULARY,
            "dim": D,
            "n_layers": 2,
            "n_heads": H,
            "hidden_dim": 2 * D,
            "max_position_embeddings": 64,
        },
    ),
    _encoder("albert", "AlbertModel", embedding_size=32),
    _encoder("electra", "ElectraModel", embedding_size=32),
    _encoder("camembert", "CamembertModel"),
    _encoder("xlm-roberta", "XLMRobertaModel"),
    _encoder("megatron-bert", "MegatronBertModel"),
    _encoder("ernie", "ErnieModel"),
    _encoder("layoutlm", "LayoutLMModel"),
    _encoder("rembert", "RemBertModel", input_embedding_size=32, dead_rows=0),
    _encoder("mpnet", "MPNetModel", _SELF + "; relative position bias", dead_rows=0),
    _encoder(
        "roformer",
        "RoFormerModel",
        _SELF + "; rotary positions",
        embedding_size=D,
        dead_rows=0,
    ),
    _encoder(
        "mobilebert",
        "MobileBertModel",
        "two layers with a self-attention each; query and key project the bottleneck, value the "
        "wide tensor; torch takes its shift by one for another shape below 3 tokens",
        seq=(3, 16, 23),
        embedding_size=32,
        true_hidden_size=D,
        intra_bottleneck_size=D,
    ),
    _encoder(
        "modernbert",
        "ModernBertModel",
        _PACKED + "; rotary positions, the second layer sees a window of 8",
        local_attention=8,
        global_attn_every_n_layers=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        attn_implementation="sdpa",
    ),
    _encoder(
        "esm",
        "EsmModel",
        _SELF + "; rotary positions, the scale on the query before them",
        position_embedding_type="rotary",
        pad_token_id=1,
        mask_token_id=2,
    ),
    _encoder("nomic-bert", "NomicBertModel", _SELF + "; rotary positions"),
    _encoder("xlm-roberta-xl", "XLMRobertaXLModel"),
    _encoder("splinter", "SplinterModel"),
    _encoder("data2vec-text", "Data2VecTextModel"),
    _encoder(
        "deberta-v2",
        "DebertaV2Model",
        _SELF + "; positions have projections and scores of their own, added to the others",
        relative_attention=True,
        max_relative_positions=8,
        position_buckets=4,
        pos_att_type=["c2p", "p2c"],
        dead_rows=0,
    ),
    _encoder(
        "longformer",
        "LongformerModel",
        "two layers; query, key and value project one tensor, and once more for global tokens",
        attention_window=4,
        dead_rows=0,
        uncapturable="it asks in Python how many tokens are global",
    ),
    _encoder(
        "xlnet",
        "XLNetModel",
        _SELF + "; positions have scores of their own; einsum throughout",
        sizes={
            "vocab_size": VOCABULARY,
            "d_model": D,
            "n_layer": 2,
            "n_head": H,
            "d_inner": 2 * D,
        },
        dead_rows=0,
    ),
)
