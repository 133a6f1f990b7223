"""Decoding: every way to the same tokens gives the numbers of one pass, and greedy choices agree.

One Finding for each way of `decoding_ways`, judged by the bound of parity against the float64 module
at every position; and one for greedy generation, against PyTorch's choices. Beside the numbers of a
judgement:

    positions                   results that were compared
    cache_bytes_per_step        bytes of caches that a step of one token copied, at most
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnport.engines.decoding.layout import DecodingLayout
from attnport.engines.decoding.session import DecodingSession
from attnport.engines.decoding.visibility import Held, Step
from attnport.engines.decoding.words import mask_as
from attnport.errors import InternalError, UsageError
from attnport.export import case_decoding
from attnport.export.bundle import Bundle, Case
from attnport.export.records import OutputReference
from attnport.validate.decoding_ways import WAYS, Run, Way
from attnport.validate.finding import Finding, Subject
from attnport.validate.judgement import Judgement, judge, judgement_of_refusal

if TYPE_CHECKING:
    import torch


_NO_MASK = "the graph takes no mask over its caches, so it cannot be told what is padding"


@dataclass(frozen=True)
class Truth:
    """Whole sequences and what the float64 module gives for them.

    Attributes:
        tokens: (B,S) ids, or (B,S,D).
        fixed: What stays the same in all steps.
        results: (B,S,V) in float64.
        reference: What their bound is made of.
        seed: Of what else is drawn.
    """

    tokens: np.ndarray
    fixed: dict[str, np.ndarray]
    results: np.ndarray
    reference: OutputReference
    seed: int


def truth_of(
    bundle: Bundle, layout: DecodingLayout, module: torch.nn.Module | None = None
) -> Truth | str:
    """The sequences that decoding is proved by.

    They come with the bundle; where it has none they are made with the module.

    Args:
        bundle: The bundle.
        layout: The parts of its graph.
        module: The module that it was exported from.

    Returns:
        The sequences; or why there are none.

    Raises:
        BundleError: If the case cannot be read.
        ModuleError: If the module fails.
        UsageError: If its mask is none that decoding makes.
    """
    for record in bundle.manifest.cases:
        if record.mask == case_decoding.MASK:
            return _truth(bundle.load_case(record.name), layout)
    from attnport.export.cases import decoding_plan

    plan = decoding_plan(bundle.manifest.inputs, bundle.axes)
    if plan is None:
        return (
            "its axes take no sequence of two tokens from empty caches: export it with past=0 and "
            "seq=2 in their ranges, so that a prompt can be given"
        )
    if module is None:
        return (
            f"the bundle carries no case {case_decoding.NAME!r}, and the module is not at hand: "
            "export it with all its cases, or prove it where PyTorch is"
        )
    from attnport.validate.decoding_module import computed_case

    return _truth(computed_case(bundle, module, plan), layout)


def check_decoding(
    session: DecodingSession, bundle: Bundle, truth: Truth, *, required: bool
) -> Iterator[Finding]:
    """Runs every way, one Finding each.

    Args:
        session: An opened session; it is started anew for each way.
        bundle: What it was made from.
        truth: The sequences.
        required: Whether parity is required of the engine.
    """
    subject = Subject.of(bundle, session.kind)
    for name, way in WAYS.items():
        if session.layout.mask is None and "padd" in name:
            yield subject.finding("decoding", name, "not run", _NO_MASK, required=False)
            continue
        found = _judged(session, truth, way)
        message = found.message
        if found.status == "failed":
            message = f"{' '.join((way.__doc__ or name).split())} {message}".strip()
        yield subject.finding(
            "decoding",
            name,
            found.status,
            message,
            required=required and found.counts,
            numbers=found.numbers,
        )


def _judged(session: DecodingSession, truth: Truth, way: Way) -> Judgement:
    others = _others(session.layout, truth)
    run = Run(session, truth.tokens, others, truth.fixed)
    try:
        way(run)
    except InternalError:
        raise
    except Exception as err:  # whatever the engine's own library raises
        return judgement_of_refusal(err)
    assert run.results is not None
    spec = session.layout.result
    if run.results.shape != truth.results.shape:
        # Compared whole, since rows cannot be picked: the sentence on shapes is judge's.
        return judge(run.results, spec, truth.results, truth.reference)
    asked = run.asked
    found = judge(run.results[asked], spec, truth.results[asked], truth.reference)
    numbers = {**found.numbers, "positions": int(asked.sum())}
    if run.step_bytes:
        numbers["cache_bytes_per_step"] = max(run.step_bytes)
    return found._replace(numbers=numbers)


def _others(layout: DecodingLayout, truth: Truth) -> np.ndarray:
    """Other tokens of the same form: the sequences' own, elsewhere and turned."""
    draws = np.random.Generator(np.random.PCG64(truth.seed + 1))
    if layout.vocabulary is not None and layout.has_vocabulary:
        drawn = draws.integers(0, layout.vocabulary, truth.tokens.shape)
        return drawn.astype(truth.tokens.dtype)
    if layout.has_vocabulary:
        return draws.permuted(truth.tokens, axis=1)
    return draws.standard_normal(truth.tokens.shape).astype(truth.tokens.dtype)


def _truth(case: Case, layout: DecodingLayout) -> Truth | str:
    name = layout.result.name
    if name not in case.references:
        return f"the case {case.record.name!r} holds no reference of {name!r}: export again"
    if not _is_only_hidden(case, layout):
        mask = layout.mask.name if layout.mask is not None else "the mask"
        raise UsageError(
            f"{mask} does more than hide what comes after: decoding gives no other bias, so parity "
            "of the bundle's cases is what there is"
        )
    return Truth(
        tokens=case.inputs[layout.tokens.name],
        fixed={spec.name: case.inputs[spec.name] for spec in layout.fixed},
        results=case.references[name],
        reference=case.record.references[name],
        seed=case.record.seed,
    )


def _is_only_hidden(case: Case, layout: DecodingLayout) -> bool:
    """Whether the case's mask is what a session gives for one pass."""
    if layout.mask is None or layout.kind == "static":
        return True
    tokens = case.inputs[layout.tokens.name]
    step = Step(Held(len(tokens), None), np.ones(tokens.shape[:2], bool))
    given = mask_as(layout.mask, step.mask, step.real)
    return np.array_equal(given, case.inputs[layout.mask.name])
