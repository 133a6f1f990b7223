"""Which architectures ONNX Runtime's latency is measured on, at which sizes, and why these.

All of the zoo would take an hour, and most of it is one way of writing attention over and over. One
of each way is here: kind of mask, kind of position, packed or separate projections, grouped heads,
norms on heads, one and two sequences; and the ones of real width, where products outweigh the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.zoo.code_version import code_version

STAMP = "prepared.txt"


@dataclass(frozen=True)
class Choice:
    """An architecture to measure.

    Attributes:
        name: In the zoo.
        why: What it stands for.
        sizes: Axes that are not as in the example (batch 2, sequence 16).
    """

    name: str
    why: str
    sizes: Mapping[str, int] = field(default_factory=dict)


def stamp(choice: Choice) -> str:
    """What the folder of a finished export says: by which code, for which sizes."""
    return f"{code_version()} {sorted(choice.sizes.items())}"


def is_prepared(choice: Choice, folder: Path) -> bool:
    """Whether this very code has written the folder, for these sizes."""
    file = folder / STAMP
    return file.is_file() and file.read_text("utf-8") == stamp(choice)


_ONE_LONG = {"batch": 1, "seq": 128}

CHOICES = (
    Choice("bert", "SDPA, padding mask, biases"),
    Choice("bert-eager", "written out, additive padding mask"),
    Choice("deberta-v2", "disentangled positions, heads in the batch"),
    Choice("modernbert", "rotary positions, windows, packed projections"),
    Choice("gpt2", "causal, packed projections"),
    Choice("gpt2-padded", "causal and padded"),
    Choice("gpt-neo", "products in fp32, windows, a constant triangle"),
    Choice("bloom", "ALiBi, packed head by head"),
    Choice("llama", "grouped queries, rotary positions, causal"),
    Choice("llama-padded", "likewise and padded"),
    Choice("qwen3", "norms on the heads"),
    Choice("gemma2", "capped scores"),
    Choice("falcon", "one key/value head"),
    Choice("t5", "relative position bias, two sequences, cross-attention"),
    Choice("bart", "two sequences, cross-attention, biases"),
    Choice("whisper-encoder", "a fixed length behind convolutions"),
    Choice("vit", "images, no mask"),
    Choice("swin", "windows of images, relative position bias"),
    Choice("nn-encoder-padded", "torch.nn, padding mask"),
    Choice("nn-transformer", "torch.nn, two sequences"),
    Choice("tril-buffer", "the textbook's constant triangle"),
    Choice("mask-minus-infinity", "the textbook's mask, dead rows"),
    Choice("stack-sdpa", "width 512: four pre-LN blocks", _ONE_LONG),
    Choice("stack-causal", "width 512, causal", _ONE_LONG),
    Choice("stack-mask-sdpa", "width 512, bool mask", _ONE_LONG),
    Choice("bert-512", "width 512", {"batch": 1, "seq": 64}),
    Choice("llama-512", "width 512", _ONE_LONG),
    Choice("minilm", "trained weights, width 384, six layers", _ONE_LONG),
)
