"""What a session is fed, checked and turned into what the graph takes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.decoding.visibility import Step
from attnport.errors import InputError
from attnport.export.arrays import numpy_dtype
from attnport.export.records import TensorSpec


def require_tokens(
    layout: DecodingLayout, tokens: np.ndarray, valid: np.ndarray, batch: int
) -> None:
    """Whether the tokens of one step can be run.

    Args:
        layout: The parts of the graph.
        tokens: (B,N) or (B,N,D).
        valid: (B,N).
        batch: B, as the session was started.

    Raises:
        InputError: If they cannot; says why.
    """
    spec = layout.tokens
    wanted = numpy_dtype(spec.dtype)
    if tokens.dtype != wanted:
        raise InputError(f"{spec.name!r} is {tokens.dtype}, the graph takes {wanted}: convert it")
    if tokens.ndim != len(spec.shape) or tokens.shape[2:] != tuple(spec.shape[2:]):
        raise InputError(f"{spec.name!r} has shape {tokens.shape}: give {spec.shape}")
    if len(tokens) != batch:
        raise InputError(
            f"tokens of {len(tokens)} sequences were given, and the caches hold {batch}: feed all "
            "of them, or start again"
        )
    new, most = tokens.shape[1], layout.most_new()
    if not 1 <= new <= most:
        raise InputError(f"{new} tokens were given, and one step takes 1 to {most}: feed fewer")
    if valid.shape != tokens.shape[:2] or valid.dtype != bool:
        raise InputError(
            f"valid is {valid.dtype} {valid.shape}: give a bool for each of the {batch} x {new} "
            "tokens"
        )
    if layout.has_vocabulary:
        _require_known(layout, tokens)


def require_fixed(layout: DecodingLayout, fixed: Mapping[str, np.ndarray]) -> None:
    """Whether everything that stays the same in all steps was given, in its dtype and rank.

    Raises:
        InputError: If something is missing, unknown or of another form.
    """
    wanted = {spec.name: spec for spec in layout.fixed}
    if set(fixed) != set(wanted):
        raise InputError(
            f"what stays the same in all steps is {', '.join(wanted) or 'nothing'}, and "
            f"{', '.join(fixed) or 'nothing'} was given"
        )
    for name, array in fixed.items():
        spec = wanted[name]
        if array.dtype != numpy_dtype(spec.dtype) or array.ndim != len(spec.shape):
            raise InputError(
                f"{name!r} is {array.dtype} {array.shape}: give {spec.dtype} {spec.shape}"
            )


def feeds_of(layout: DecodingLayout, tokens: np.ndarray, step: Step) -> dict[str, np.ndarray]:
    """Every input of one step but the caches and the fixed ones.

    Args:
        layout: The parts of the graph.
        tokens: (B,N) or (B,N,D).
        step: What each of them sees, and where it goes.
    """
    feeds = {layout.tokens.name: tokens}
    if layout.positions is not None:
        kind = numpy_dtype(layout.positions.dtype)
        feeds[layout.positions.name] = step.positions.astype(kind)
    if layout.mask is not None:
        feeds[layout.mask.name] = mask_as(layout.mask, step.mask, step.real)
    if layout.write_at is not None:
        kind = numpy_dtype(layout.write_at.dtype)
        feeds[layout.write_at.name] = step.write_at.astype(kind)
    return feeds


def mask_as(spec: TensorSpec, visible: np.ndarray, real: np.ndarray) -> np.ndarray:
    """A mask in the form that an input has.

    Args:
        spec: The input: (B,N,T), (B,1,N,T), or (B,T) for what each key is, whoever looks: then
            causality is the graph's own matter.
        visible: (B,N,T), True for visible.
        real: (B,T), True for what is no padding.
    """
    if len(spec.shape) == 2:
        visible = real
    elif len(spec.shape) == 4:
        visible = visible[:, None]
    kind = numpy_dtype(spec.dtype)
    if spec.role == "bias":
        return np.where(visible, kind.type(0), kind.type(-np.inf))
    shown = ~visible if spec.hides_where_true else visible
    return shown.astype(kind)


def _require_known(layout: DecodingLayout, tokens: np.ndarray) -> None:
    words = layout.vocabulary
    wrong = tokens < 0 if words is None else (tokens < 0) | (tokens >= words)
    if wrong.any():
        b, n = (int(place) for place in np.argwhere(wrong)[0])
        raise InputError(
            f"token {int(tokens[b, n])} (sequence {b}, token {n}) is none of the vocabulary's "
            f"{words} ids, 0 to {(words or 1) - 1}: encode with the tokenizer of this model"
        )
