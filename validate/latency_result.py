"""From samples to Measurements: which reference, which ratio, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnport.export.bundle import Bundle
from attnport.validate.finding import Number
from attnport.validate.latency_job import SAME, LatencyJob
from attnport.validate.latency_stats import (
    Ratio,
    is_difference,
    ratio_of_medians,
    resolution,
    summary,
)
from attnport.validate.report import Measurement


def measurements_from_samples(
    bundle: Bundle,
    job: LatencyJob,
    samples: Mapping[str, np.ndarray],
    same_as: str | None,
    facts: Mapping[str, Number] | None = None,
    about: str = "",
) -> tuple[Measurement, ...]:
    """One Measurement for each engine, and the A/A test last.

    `ratio` is against the fastest torch form that was measured, `eager_ratio` against torch-eager.

    Args:
        bundle: What was run.
        job: How.
        samples: (R, k) latencies in microseconds by kind, and those of the A/A entry.
        same_as: The kind that the A/A entry is; None where there is none.
        facts: Further values of each: how inputs were rotated, what copies take.
        about: What a reader must know of all of them; it ends every note but the A/A test's.
    """
    engines = {kind: found for kind, found in samples.items() if kind != SAME}
    torch_forms = [kind for kind in engines if kind.startswith("torch-")]
    fastest = min(torch_forms, key=lambda kind: float(np.median(engines[kind])), default=None)
    same = None
    if same_as is not None:
        same = ratio_of_medians(samples[SAME], samples[same_as], seed=job.seed)

    def measurement(kind: str, values: Mapping[str, Number], note: str) -> Measurement:
        return Measurement(
            kind="latency",
            model=bundle.name,
            bundle=bundle.hash,
            dtype=bundle.dtype,
            engine=kind,
            case=job.case,
            values={**values, "threads": job.threads, **(facts or {})},
            note=note,
        )

    found = []
    for kind, latencies in engines.items():
        values: dict[str, Number] = dict(summary(latencies))
        if job.eager in engines and kind != job.eager:
            eager = ratio_of_medians(latencies, engines[job.eager], seed=job.seed)
            values |= _named(eager, "eager_ratio")
        note = _alone(fastest)
        if fastest is not None and kind != fastest:
            ratio = ratio_of_medians(latencies, engines[fastest], seed=job.seed)
            values |= {**_named(ratio, "ratio"), "reference": fastest}
            note = _words(ratio, same, fastest)
        found.append(measurement(kind, values, f"{note}; {about}" if about else note))
    if same is not None and same_as is not None:
        values = {**summary(samples[SAME]), **_named(same, "ratio"), "reference": same_as}
        found.append(measurement(same_as, values, _same_words(same, same_as)))
    return tuple(found)


def _named(ratio: Ratio, name: str) -> dict[str, Number]:
    return {
        name: round(ratio.value, 4),
        f"{name}_low": round(ratio.low, 4),
        f"{name}_high": round(ratio.high, 4),
    }


def _alone(fastest: str | None) -> str:
    return (
        "no torch form to compare with: add one, such as -e torch-eager"
        if fastest is None
        else "the fastest torch form"
    )


def _words(ratio: Ratio, same: Ratio | None, reference: str) -> str:
    """What a reader may say of the ratio."""
    factor = 1.0 if same is None else resolution(same)
    if not is_difference(ratio, factor):
        within = (max(factor, ratio.high, 1 / ratio.low) - 1) * 100
        said = f"no difference from {reference} within {within:.0f}%"
    elif ratio.value < 1:
        said = f"{1 / ratio.value:.2f} times as fast as {reference}"
    else:
        said = f"takes {ratio.value:.2f} times as long as {reference}"
    if same is None:
        return f"{said}; no A/A test was possible"
    return said if same.holds_one else f"{said}; {_noisy(same)}"


def _noisy(same: Ratio) -> str:
    beyond = (resolution(same) - 1) * 100
    return f"the machine was too noisy for differences below {beyond:.1f}%"


def _same_words(same: Ratio, kind: str) -> str:
    said = (
        f"A/A test: {kind} entered twice came out at {same.value:.3f} "
        f"({same.low:.3f} to {same.high:.3f})"
    )
    return f"{said}: no difference" if same.holds_one else f"{said}: {_noisy(same)}"
