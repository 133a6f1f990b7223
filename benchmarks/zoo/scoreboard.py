"""The scoreboard: expected and found, side by side, and what was refused, in its own words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.figures import NOTHING, best_stock, figure_lines, half_of
from benchmarks.zoo.outcome import Outcome

_HEAD = (
    "| architecture | attentions: expected / found / fused | causal: expected / bounded | QKV: "
    "expected / merged | kernels: ours / 18 / 23 / most | region: ours / 18 / 23 | parity fp32, "
    "half | seconds |"
)


def line_of(entry: Architecture, outcome: Outcome) -> str:
    """One line for the terminal: what is as expected, and what is not."""
    wrong = list(shortfalls(entry, outcome))
    half = half_of(entry, outcome)
    said = "; ".join(wrong) if wrong else "as expected"
    return f"{entry.name}: {half.kernels} kernels, {outcome.seconds:.0f} s: {said}"


def shortfalls(entry: Architecture, outcome: Outcome) -> Iterator[str]:
    """What is not as it should be, a clause each."""
    if outcome.died:
        yield f"died: {outcome.died}"
    if entry.uncapturable:
        yield from _capture_shortfalls(entry, outcome)
        return
    for dtype, found in outcome.dtypes.items():
        if found.refusal:
            yield f"{dtype}: {found.refusal}"
        if found.export_seconds is None:
            continue
        if found.found != entry.attentions:
            yield f"{dtype}: found {found.found} of {entry.attentions}: {_said(found.unrecognised)}"
        if found.merged != entry.mergeable or found.groups != entry.groups:
            yield (
                f"{dtype}: {found.merged} merged, {found.groups} groups of {entry.groups}: "
                f"{_said(found.unmerged)}"
            )
        if (
            found.parity != "passed" and dtype != "bfloat16"
        ):  # which ONNX Runtime has no kernels for
            yield f"{dtype}: parity {found.parity}: {found.parity_note}"
    yield from _plan_shortfalls(entry, outcome)


def _capture_shortfalls(entry: Architecture, outcome: Outcome) -> Iterator[str]:
    """Whether what torch cannot capture was refused in a sentence, and not by a crash."""
    for dtype, found in outcome.dtypes.items():
        if not found.refusal:
            yield f"{dtype}: exported, where it was thought that {entry.uncapturable}"
        elif not found.refused_in_words:
            yield f"{dtype}: {found.refusal}"


def _plan_shortfalls(entry: Architecture, outcome: Outcome) -> Iterator[str]:
    half = half_of(entry, outcome)
    if not half.built or half.kernels is None:
        return
    if half.fused != entry.fusable:
        yield f"fused {half.fused} of {entry.fusable}: {_said(half.unfused)}"
    if half.bounded != entry.causal:
        yield f"bounded {half.bounded} of {entry.causal}"
    best = best_stock(outcome)
    if best is not None and half.kernels > best + entry.dead_rows:
        yield f"{half.kernels} kernels, and stock takes {best} ({entry.dead_rows} may meet dead rows)"
    if entry.most_kernels is not None and half.kernels > entry.most_kernels:
        yield f"{half.kernels} kernels, and {entry.most_kernels} are known to be enough"


def _said(reasons: Sequence[str]) -> str:
    return " | ".join(reasons) or "no reason given"


def markdown(
    entries: Sequence[Architecture], outcomes: Mapping[str, Outcome], content: Mapping[str, Any]
) -> str:
    """The whole of results.md."""
    setting = ", ".join(f"{name} {value}" for name, value in content["setting"].items())
    lines = [
        "# The zoo: what became of each architecture",
        "",
        f"Written by `make zoo` at {content['created']}; {setting}. Kernels are counted in the plan "
        "that TensorRT for RTX builds in fp16, without a GPU; stock exports are torch.onnx's own at "
        "opset 18 and 23. `benchmarks/zoo` says what is expected of each and why. "
        + _codes([outcomes[e.name] for e in entries], content["code"])
        + f" They took {sum(o.seconds for o in outcomes.values()) / 60:.0f} minutes together.",
        "",
        *figure_lines([e for e in entries if not e.uncapturable], outcomes),
        *_uncapturable_lines(entries, outcomes),
    ]
    for family in dict.fromkeys(entry.family for entry in entries):
        lines += ["", f"## {family}", "", _HEAD, "|" + "---|" * 8]
        lines += [_row(e, outcomes[e.name]) for e in entries if e.family == family]
    lines += ["", "## What is not as expected, and what was said", ""]
    for entry in entries:
        wrong = list(shortfalls(entry, outcomes[entry.name]))
        if wrong:
            lines.append(f"- **{entry.name}**: {'; '.join(wrong)}")
    return "\n".join(lines) + "\n"


def _codes(rows: Sequence[Outcome], this_code: str) -> str:
    """Which code the rows were measured with: a run that was stopped leaves older ones."""
    counted = Counter(row.code or "not noted" for row in rows).most_common()
    if [code for code, _ in counted] == [this_code]:
        return f"All {len(rows)} rows were measured with one code ({this_code})."
    said = ", ".join(f"{count} with {code}" for code, count in counted)
    return f"Rows were measured with: {said}; the code of the last run is {this_code}."


def _uncapturable_lines(
    entries: Sequence[Architecture], outcomes: Mapping[str, Outcome]
) -> list[str]:
    lines = ["", "Refused, since torch itself cannot capture them; they stand in no total:", ""]
    for entry in (e for e in entries if e.uncapturable):
        said = {found.refusal for found in outcomes[entry.name].dtypes.values()}
        lines.append(
            f"- **{entry.name}**: {entry.uncapturable}. What was said: {' | '.join(said)}"
        )
    return lines if len(lines) > 3 else []


def _row(entry: Architecture, outcome: Outcome) -> str:
    half = half_of(entry, outcome)
    full = outcome.dtypes.get("float32", NOTHING)
    stock = [outcome.stock.get(opset) for opset in ("18", "23")]
    kernels = [half.kernels, *(s.kernels if s else None for s in stock), entry.most_kernels]
    region = [half.region_kernels, *(s.region_kernels if s else None for s in stock)]
    cells = (
        entry.name,
        f"{entry.attentions} / {half.found} / {half.fused}",
        f"{entry.causal} / {half.bounded}",
        f"{entry.groups} / {half.merged}",
        _numbers(kernels),
        _numbers(region),
        f"{full.parity}, {half.parity}",
        f"{outcome.seconds:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def _numbers(values: Sequence[int | None]) -> str:
    return " / ".join("-" if value is None else str(value) for value in values)
