"""What the inputs and outputs of a decoding bundle are for: tokens, positions, mask, caches.

Letters, here and in the whole folder: B batch, N tokens of one step, P tokens held already, T = P+N,
M capacity of a static cache, Hkv key/value heads, Dh head size, V vocabulary.

    kind     cache input          cache output         mask     where new rows go
    concat   (B,Hkv,P,Dh)         (B,Hkv,T,Dh)         (B,N,T)  behind the last
    static   (B,Hkv,M,Dh)         the same, rewritten  (B,N,M)  at `write_at` (B,), a row for each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnport.axes import Axis
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.export.records import TensorSpec

Kind = Literal["concat", "static"]


@dataclass(frozen=True)
class Cache:
    """One cache: the input it is read from and the output that holds it with the new rows."""

    input: TensorSpec
    output: TensorSpec
    axis: int


@dataclass(frozen=True)
class DecodingLayout:
    """The parts of a graph that decodes.

    Attributes:
        kind: How its caches grow.
        tokens: Token ids (B,N), or activations (B,N,D) where the graph has no embedding.
        positions: Of the new tokens, (B,N); None where the graph counts by itself.
        mask: What each new token sees; None where the graph hides by itself.
        write_at: The first new row of each batch entry in a static cache; None for others.
        fixed: What stays the same in all steps, such as keys and values of an encoder.
        result: Logits (B,N,V), or activations.
        caches: All of them.
        axes: The ranges of the bundle's axes.
    """

    kind: Kind
    tokens: TensorSpec
    positions: TensorSpec | None
    mask: TensorSpec | None
    write_at: TensorSpec | None
    fixed: tuple[TensorSpec, ...]
    result: TensorSpec
    caches: tuple[Cache, ...]
    axes: Mapping[str, Axis]

    @property
    def has_vocabulary(self) -> bool:
        """Whether it takes token ids and gives a number for each token that may come next."""
        return self.tokens.role == "token_ids"

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are."""
        width = self.result.shape[-1]
        return self.tokens.high or (width if isinstance(width, int) else None)

    def most_before(self, new: int, capacity: int | None) -> int:
        """How many tokens may be held where a step takes `new` more.

        Args:
            new: N.
            capacity: M of static caches.
        """
        if capacity is not None:
            return capacity - new
        cache = self.caches[0]
        before = self._most(cache.input.shape[cache.axis])
        return min(before, self._most(cache.output.shape[cache.axis]) - new)

    def most_new(self) -> int:
        """How many tokens one step takes at most."""
        return self._most(self.tokens.shape[1])

    def _most(self, dim: int | str) -> int:
        if isinstance(dim, int):
            return dim
        return self.axes[dim].max if dim in self.axes else 2**31 - 1


def layout_of(bundle: Bundle) -> DecodingLayout:
    """Finds the parts of a bundle that decodes.

    Raises:
        UsageError: If it has no caches, mixes kinds, or has nothing that tokens could be.
    """
    manifest = bundle.manifest
    if not manifest.caches:
        raise UsageError(
            f"{bundle.path} has no caches, so it cannot decode token by token: export a model with "
            "past keys and values, such as decoder-lm"
        )
    caches, kind = _caches(bundle)
    held = {name for cache in caches for name in (cache.input.name, cache.output.name)}
    result = next((spec for spec in manifest.outputs if spec.name not in held), None)
    if result is None or len(result.shape) < 2:
        raise UsageError(f"{bundle.path} gives nothing but its caches: export it with its logits")
    rest = [spec for spec in manifest.inputs if spec.name not in held]
    tokens = _tokens(rest, result)
    if tokens is None:
        raise UsageError(
            f"{bundle.path} has neither token ids nor activations of the shape of {result.name!r}: "
            "name the input's role at export, --input NAME:int64[batch,seq]=token_ids"
        )
    rest.remove(tokens)
    mask = _mask(rest, caches[0])
    positions = next((s for s in rest if s.role == "positions" and len(s.shape) == 2), None)
    write_at = next((s for s in rest if s.role == "write_at"), None)
    return DecodingLayout(
        kind=kind,
        tokens=tokens,
        positions=positions,
        mask=mask,
        write_at=write_at,
        fixed=tuple(spec for spec in rest if spec not in (mask, positions, write_at)),
        result=result,
        caches=caches,
        axes=bundle.axes,
    )


def _caches(bundle: Bundle) -> tuple[tuple[Cache, ...], Kind]:
    manifest = bundle.manifest
    inputs = {spec.name: spec for spec in manifest.inputs}
    outputs = {spec.name: spec for spec in manifest.outputs}
    kinds = {cache.kind for cache in manifest.caches}
    if len(kinds) > 1:
        raise UsageError(
            f"{bundle.path} has caches of both kinds: export it with one kind for all layers"
        )
    found = tuple(Cache(inputs[c.input], outputs[c.output], c.axis) for c in manifest.caches)
    return found, kinds.pop()


def _tokens(specs: Sequence[TensorSpec], result: TensorSpec) -> TensorSpec | None:
    ids = next((spec for spec in specs if spec.role == "token_ids"), None)
    if ids is not None:
        return ids
    return next(
        (s for s in specs if s.role == "activation" and s.shape[:2] == result.shape[:2]), None
    )


def _mask(specs: Sequence[TensorSpec], cache: Cache) -> TensorSpec | None:
    """The mask over the keys of the caches: others are about an encoder's."""
    masks = [spec for spec in specs if spec.role in ("mask", "bias")]
    keys = cache.output.shape[cache.axis]
    return next((spec for spec in masks if spec.shape[-1] == keys), None)
