"""The figures that the zoo must reach, what was reached, and every exception by name."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.outcome import DtypeOutcome, Outcome

ASKED_REGION = 0.65
NOTHING = DtypeOutcome()
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: What is counted.
        asked: The figure to reach.
        reached: The figure that was reached.
        holds: Whether it was.
        exceptions: Architectures that fall short of it.
    """

    name: str
    asked: str
    reached: str
    holds: bool
    exceptions: tuple[str, ...] = ()


def figures(entries: Sequence[Architecture], outcomes: Outcomes) -> Iterator[Figure]:
    """All of them; `entries` are those that torch can capture."""
    half = {e.name: half_of(e, outcomes[e.name]) for e in entries}
    yield _each(
        "exported, fp32 and half precision", entries, lambda e: _exported(e, outcomes[e.name])
    )
    counts: tuple[tuple[str, Callable[[Architecture], int], str], ...] = (
        ("attentions found", lambda e: e.attentions, "found"),
        ("projection groups merged", lambda e: e.mergeable, "merged"),
        ("attentions fused by TensorRT for RTX, fp16", lambda e: e.fusable, "fused"),
        ("purely causal attentions bounded in the plan", lambda e: e.causal, "bounded"),
    )
    for name, expected, found in counts:
        yield _count(
            name,
            {e.name: expected(e) for e in entries},
            {n: getattr(o, found) for n, o in half.items()},
        )
    yield _kernels(entries, outcomes)
    yield _region(entries, outcomes)
    yield _forms([e for e in entries if e.most_kernels is not None], half)
    for dtype in ("float32", "float16"):
        asked = [e for e in entries if dtype in ("float32", e.half)]
        yield _each(
            f"parity proved in ONNX Runtime, {dtype}",
            asked,
            lambda e, dtype=dtype: _proved(outcomes[e.name], dtype),  # type: ignore[misc]
        )


def half_of(entry: Architecture, outcome: Outcome) -> DtypeOutcome:
    """What became of it in its half precision."""
    return outcome.dtypes.get(entry.half, NOTHING)


def best_stock(outcome: Outcome) -> int | None:
    """The fewest kernels of a stock export's engine."""
    return min((s.kernels for s in outcome.stock.values() if s.kernels is not None), default=None)


def region_ratio(entry: Architecture, outcome: Outcome) -> float | None:
    """Our kernels between the projections over those of the stock export at opset 23."""
    ours, stock = half_of(entry, outcome), outcome.stock.get("23")
    if stock is None or not stock.region_kernels or not ours.region_kernels:
        return None
    return ours.region_kernels / stock.region_kernels


def _exported(entry: Architecture, outcome: Outcome) -> bool:
    rows = [outcome.dtypes.get(dtype, NOTHING) for dtype in ("float32", entry.half)]
    return all(row.export_seconds is not None for row in rows)


def _proved(outcome: Outcome, dtype: str) -> bool:
    return outcome.dtypes.get(dtype, NOTHING).parity == "passed"


def _each(
    name: str, entries: Sequence[Architecture], holds: Callable[[Architecture], bool]
) -> Figure:
    short = tuple(entry.name for entry in entries if not holds(entry))
    reached = f"{len(entries) - len(short)} of {len(entries)}"
    return Figure(name, "each", reached, not short, short)


def _count(name: str, expected: Mapping[str, int], found: Mapping[str, int]) -> Figure:
    short = tuple(n for n, count in expected.items() if found[n] != count)
    total = sum(expected.values())
    return Figure(name, str(total), str(sum(found.values())), not short, short)


def _kernels(entries: Sequence[Architecture], outcomes: Outcomes) -> Figure:
    compared = [
        e
        for e in entries
        if best_stock(outcomes[e.name]) and half_of(e, outcomes[e.name]).kernels is not None
    ]
    return _each(
        "kernels of the engine, fp16: none more than the better stock export's (opset 18, 23), and "
        "one for each attention that may meet a dead row",
        compared,
        lambda e: (
            (half_of(e, outcomes[e.name]).kernels or 0)
            <= (best_stock(outcomes[e.name]) or 0) + e.dead_rows
        ),
    )


def _region(entries: Sequence[Architecture], outcomes: Outcomes) -> Figure:
    ratios = [r for e in entries if (r := region_ratio(e, outcomes[e.name])) is not None]
    median = statistics.median(ratios) if ratios else float("nan")
    return Figure(
        f"kernels from the projections' input to the output projection over the stock export's at "
        f"opset 23, median of {len(ratios)}",
        f"at most {ASKED_REGION}",
        f"{median:.2f}",
        median <= ASKED_REGION,
    )


def _forms(entries: Sequence[Architecture], half: Mapping[str, DtypeOutcome]) -> Figure:
    return _each(
        "width 512, from every way of writing attention: no more kernels than the best form by hand",
        entries,
        lambda e: (half[e.name].kernels or 10**6) <= (e.most_kernels or 0),
    )


def figure_lines(entries: Sequence[Architecture], outcomes: Outcomes) -> list[str]:
    """The table, and what no kernel of TensorRT takes."""
    lines = ["| figure | asked | reached | exceptions |", "|---|---|---|---|"]
    for figure in figures(entries, outcomes):
        reached = figure.reached if figure.holds else f"**{figure.reached}**"
        said = ", ".join(figure.exceptions) or "-"
        lines.append(f"| {figure.name} | {figure.asked} | {reached} | {said} |")
    limits: dict[str, list[str]] = {}
    for entry in entries:
        for limit, count in entry.unfusable.items():
            limits.setdefault(limit, []).append(f"{entry.name} ({count})")
    if limits:
        lines += [
            "",
            "Not asked to be fused, by a limit of TensorRT; the smallest graph that shows it is "
            "built in tests/zoo/test_limits.py:",
            "",
        ]
        lines += [f"- {limit}: {', '.join(names)}" for limit, names in limits.items()]
    return lines
