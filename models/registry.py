"""The named models, with sizes that can be set: what `attnport models` lists.

A name such as `multi-head` takes sizes, and has D=512 H=8 without them. A name that ends in its
sizes, such as `multi-head-4096-32`, is the same model with these fixed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.models.attention import (
    CrossAttention,
    MaskedMultiHeadSelfAttention,
    MultiHeadSelfAttention,
    SingleHeadSelfAttention,
)
from attnport.models.blocks import AttentionStack, DecoderBlock, EncoderBlock
from attnport.models.decoding_entries import DECODING
from attnport.models.entry import Entry, Size
from attnport.models.inputs import (
    InputSpec,
    dynamic_shapes_of,
    example_args,
    parse_input,
    roles_of,
)
from attnport.models.literals import with_braces
from attnport.models.spec import ModelSpec, seeded

_X = "x:float32[batch,seq,d_model]=activation"
_MEMORY = "memory:float32[batch,memory,d_model]=activation"
_MASK = "mask:bool[batch,1,seq,seq]=mask"
_KEY_PADDING = "mask:bool[batch,1,1,seq]=mask"
_MEMORY_PADDING = "memory_mask:bool[batch,1,1,memory]=mask"

_WIDTH = {"d_model": 512}
_HEADS = {"d_model": 512, "num_heads": 8}
_LAYERS = {"d_model": 512, "num_heads": 8, "num_layers": 4}
_BIAS = {"bias": bool}
_STACK = {"causal": bool, "bias": bool}
_BLOCK = {"d_ff": int, "norm_first": bool, "bias": bool}

_BASES = (
    Entry(
        "single-head", SingleHeadSelfAttention, (_X,), "self-attention in one head", _WIDTH, _BIAS
    ),
    Entry("multi-head", MultiHeadSelfAttention, (_X,), "self-attention in H heads", _HEADS, _BIAS),
    Entry(
        "multi-head-masked",
        MultiHeadSelfAttention,
        (_X, _MASK),
        "self-attention with a bool mask (batch,1,seq,seq) as input",
        _HEADS,
        _BIAS,
    ),
    Entry(
        "causal-multi-head",
        MaskedMultiHeadSelfAttention,
        (_X,),
        "the decoder's masked self-attention: token i sees tokens 0..i",
        _HEADS,
        _BIAS,
    ),
    Entry(
        "causal-multi-head-masked",
        MaskedMultiHeadSelfAttention,
        (_X, _KEY_PADDING),
        "causal self-attention with a key padding mask (batch,1,1,seq) as input",
        _HEADS,
        _BIAS,
    ),
    Entry(
        "cross-attention",
        CrossAttention,
        (_X, _MEMORY),
        "queries from x, keys and values from memory",
        _HEADS,
        _BIAS,
    ),
    Entry(
        "encoder-block",
        EncoderBlock,
        (_X, _KEY_PADDING),
        "self-attention and feed-forward, post-LN, with a key padding mask as input",
        _HEADS,
        _BLOCK,
    ),
    Entry(
        "decoder-block",
        DecoderBlock,
        (_X, _MEMORY, _MEMORY_PADDING),
        "causal self-attention, cross-attention, feed-forward, with the memory's padding mask",
        _HEADS,
        _BLOCK,
    ),
    Entry(
        "attention-stack",
        AttentionStack,
        (_X,),
        "pre-LN attention blocks without feed-forward, to count an engine's kernels",
        _LAYERS,
        _STACK,
    ),
    Entry(
        "attention-stack-masked",
        AttentionStack,
        (_X, _KEY_PADDING),
        "the attention stack with a key padding mask as input",
        _LAYERS,
        _STACK,
    ),
    *DECODING,
)


def _with_sized_names(entry: Entry) -> dict[str, Entry]:
    named = {entry.base: entry}
    for sizes in ({"d_model": 512, "num_heads": 8}, {"d_model": 4096, "num_heads": 32}):
        taken = {name: size for name, size in sizes.items() if name in entry.defaults}
        name = "-".join([entry.base, *map(str, taken.values())])
        named[name] = replace(entry, defaults={**entry.defaults, **taken}, fixed=frozenset(taken))
    return named


REGISTRY = {name: entry for base in _BASES for name, entry in _with_sized_names(base).items()}


def model_names() -> tuple[str, ...]:
    """Every name of the registry, in the order that people should read them."""
    return tuple(REGISTRY)


def resolve(name: str, sizes: Mapping[str, object] | None = None) -> ModelSpec:
    """Gives the model of a name, with its sizes set.

    Args:
        name: Such as "multi-head" or "multi-head-512-8".
        sizes: Such as {"d_model": 256}; text, as on the command line, is read.

    Returns:
        The model, whose source names it with every size that is not the module's own default.

    Raises:
        UsageError: If there is no such model or it has no such size.
        ModuleError: If the sizes do not fit each other.
    """
    entry = _entry(name)
    given = {key: entry.checked_size(name, key, value) for key, value in (sizes or {}).items()}
    made_with: dict[str, Size] = {**entry.defaults, **given}

    def make() -> nn.Module:
        return seeded(lambda: entry.module(**made_with)).eval()

    inputs = _inputs(entry, made_with)
    with torch.device("meta"):  # the structure alone: no memory, no time
        attentions = sum(hasattr(part, "attention_form") for part in make().modules())
    return ModelSpec(
        name=name,
        source=with_braces(f"registry:{entry.base}", made_with),
        make=make,
        make_args=lambda axis_sizes: example_args(inputs, axis_sizes),
        dynamic_shapes=dynamic_shapes_of(inputs),
        axes=_axes(entry, inputs, made_with),
        attentions=attentions,
        roles=roles_of(inputs),
        summary=entry.summary,
    )


def _entry(name: str) -> Entry:
    if name in REGISTRY:
        return REGISTRY[name]
    close = difflib.get_close_matches(name, REGISTRY, n=3)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"no model is called {name!r}: {meant}`attnport models` lists the names; "
        "your own is given as package.module:factory or path.py:factory"
    )


def _inputs(entry: Entry, sizes: Mapping[str, Size]) -> tuple[InputSpec, ...]:
    width = int(sizes["d_model"])
    specs = (parse_input(text) for text in entry.input_texts(sizes))
    return tuple(
        replace(spec, shape=tuple(width if dim == "d_model" else dim for dim in spec.shape))
        for spec in specs
    )


def _axes(
    entry: Entry, inputs: tuple[InputSpec, ...], sizes: Mapping[str, Size]
) -> dict[str, Axis]:
    """Batches are smaller where the model is wide, for the sake of memory on a workstation."""
    batch = Axis("batch", 1, 2, 8) if int(sizes["d_model"]) < 4096 else Axis("batch", 1, 1, 4)
    own: tuple[Axis, ...] = (Axis("seq", 1, 128, 512), Axis("memory", 1, 128, 512))
    if entry.axes is not None:
        own = entry.axes(sizes)
    known = (batch, *own)
    used = {name for spec in inputs for name in spec.symbols().values()}
    return {axis.name: axis for axis in known if axis.name in used}
