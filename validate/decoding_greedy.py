"""Greedy generation: the engine's choices against PyTorch's, token for token.

The engine generates from its caches. PyTorch is given the tokens that the engine chose, and must
choose each of them, too: the first one that it does not is the first at which two generations would
part. Where the float64 module's logits of the two choices lie closer than twice the bound (each may
be off by it), either is right: that is said, and not counted as a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from attnport.engines.decoding.greedy import generate, pad
from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.decoding.open import open_decoding
from attnport.engines.decoding.session import DecodingSession
from attnport.errors import InternalError
from attnport.export.bundle import Bundle
from attnport.validate.bound import bound, incomparable, uninformative
from attnport.validate.decoding import Truth
from attnport.validate.decoding_module import WideLogits
from attnport.validate.finding import Finding, Number, Subject
from attnport.validate.judgement import Judgement, judgement_of_refusal

PROMPTS, TOKENS = 20, 64
_SHORTEST, _LONGEST = 2, 12


@dataclass(frozen=True)
class _Parting:
    """Where PyTorch would choose another token, given the same ones before it."""

    prompt: int
    token: int
    chosen: int
    other: int
    gap: float


def check_greedy(
    session: DecodingSession,
    bundle: Bundle,
    module: torch.nn.Module,
    truth: Truth,
    *,
    required: bool,
) -> Finding:
    """Generates from prompts of different lengths, and looks at every choice.

    Args:
        session: An opened session.
        bundle: What it was made from.
        module: What the bundle was exported from.
        truth: Gives the bound of a logit.
        required: Whether parity is required of the engine.
    """
    subject = Subject.of(bundle, session.kind)
    try:
        found = _judged(session, bundle, module, truth)
    except InternalError:
        raise
    except Exception as err:  # whatever the engine's own library raises
        found = judgement_of_refusal(err)
    return subject.finding(
        "decoding",
        "greedy",
        found.status,
        found.message,
        required=required and found.counts,
        numbers=found.numbers,
    )


def _judged(
    session: DecodingSession, bundle: Bundle, module: torch.nn.Module, truth: Truth
) -> Judgement:
    layout = session.layout
    why_not = incomparable(truth.reference) or uninformative(truth.reference, layout.result.dtype)
    if layout.fixed:
        why_not = f"it depends on {layout.fixed[0].name!r}, too, and only prompts are made here"
    if why_not:
        return Judgement("not run", why_not, {}, False)
    tokens = min(TOKENS, _room(session) - _LONGEST)
    if tokens < 1:
        message = f"the caches have no room for {_LONGEST + 1} tokens: export with more"
        return Judgement("not run", message, {}, False)
    limit = 2 * bound(truth.reference, layout.result.dtype).max
    prompts = draw_prompts(layout, truth.seed)
    parted = _compared(session, bundle, module, prompts, tokens, limit)
    wrong = [one for one in parted if not one.gap <= limit]
    numbers: dict[str, Number] = {
        "prompts": len(prompts),
        "tokens": tokens,
        "different_at_least": len(wrong),
        "too_close_to_tell": len(parted) - len(wrong),
        "bound": limit,
    }
    if wrong:
        first = wrong[0]
        message = (
            f"not every token is PyTorch's: prompt {first.prompt} chooses {first.chosen} as token "
            f"{first.token}, PyTorch {first.other}, whose logit is {first.gap:.3g} higher, of "
            f"{limit:.3g} that rounding explains; look at the ways of decoding that failed, and at "
            "positions"
        )
        return Judgement("failed", message, numbers)
    said = f"{len(prompts)} prompts, {tokens} tokens each: every one is PyTorch's choice, too"
    if parted:
        said += f", but for {len(parted)} between logits closer than the bound: either is right"
    return Judgement("passed", said, numbers)


def _compared(
    session: DecodingSession,
    bundle: Bundle,
    module: torch.nn.Module,
    prompts: Sequence[list[int]],
    tokens: int,
    limit: float,
) -> list[_Parting]:
    """Where the two part, up to the first that rounding does not explain."""
    wide = WideLogits(bundle, session.layout, module)
    parted: list[_Parting] = []
    most = _most_batch(session.layout)
    for begin in range(0, len(prompts), most):
        some = prompts[begin : begin + most]
        chosen = generate(session, some, tokens).tokens
        for one in _partings(bundle, module, some, chosen):
            row = np.array([*some[one.prompt], *chosen[one.prompt][: one.token]])
            logits = wide.of(row)[-1]
            gap = float(logits[one.other] - logits[one.chosen])
            parted.append(replace(one, prompt=begin + one.prompt, gap=gap))
            if not gap <= limit:
                return parted
    return parted


def draw_prompts(layout: DecodingLayout, seed: int) -> list[list[int]]:
    """Prompts of different lengths, which follow from a seed."""
    draws = np.random.Generator(np.random.PCG64(seed + 2))
    words = layout.vocabulary or 2
    lengths = draws.integers(_SHORTEST, _LONGEST + 1, PROMPTS)
    return [[int(n) for n in draws.integers(0, words, length)] for length in lengths]


def _room(session: DecodingSession) -> int:
    """How many tokens a sequence may have, by caches and by positions."""
    session.start(_least_batch(session.layout))
    positions = session.layout.positions
    high = positions.high if positions is not None and positions.high is not None else session.room
    return min(session.room, high)


def _partings(
    bundle: Bundle,
    module: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    chosen: Sequence[Sequence[int]],
) -> list[_Parting]:
    """Every token that PyTorch, given those before it, would not choose."""
    rows = [[*prompt, *more] for prompt, more in zip(prompts, chosen, strict=True)]
    ids, valid = pad(rows, "left")
    with open_decoding(bundle, "torch-eager", module=module) as session:
        session.start(len(rows))
        most = session.layout.most_new()
        ids = ids.astype(session.layout.tokens.dtype)
        logits = np.concatenate(
            [
                session.feed(ids[:, n : n + most], valid[:, n : n + most])
                for n in range(0, ids.shape[1], most)
            ],
            axis=1,
        )
    found = []
    for row, more in enumerate(chosen):
        # The logits before each generated token; left padding makes all rows end together.
        best = logits[row, -len(more) - 1 : -1].argmax(-1)
        found += [
            _Parting(row, at, one, int(other), 0.0)
            for at, (one, other) in enumerate(zip(more, best, strict=True))
            if one != other
        ]
    return found


def _least_batch(layout: DecodingLayout) -> int:
    dim = layout.tokens.shape[0]
    return dim if isinstance(dim, int) else layout.axes[dim].min


def _most_batch(layout: DecodingLayout) -> int:
    dim = layout.tokens.shape[0]
    return dim if isinstance(dim, int) else layout.axes[dim].max
