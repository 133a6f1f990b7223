"""Latency: a row for each engine, grouped by model, its median with the 10th to 90th percentile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnport.validate.plots import (
    MOST_ROWS,
    Look,
    Plot,
    legend,
    name_rows,
    note_beside,
    shortened,
    strip,
)
from attnport.validate.plots_svg import INK, plot_style, svg_from_figure
from attnport.validate.report import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Bar(NamedTuple):
    """The latency of one engine, in milliseconds."""

    engine: str
    p10: float
    median: float
    p90: float
    note: str


def latency_plot(measurements: Iterable[Measurement], known: Mapping[str, Look]) -> Plot | None:
    """Draws every latency but those of A/A tests; None if there is none.

    Args:
        measurements: Those of a report.
        known: The look of each engine.
    """
    groups: dict[str, list[_Bar]] = {}
    for measured in measurements:
        bar = _bar(measured)
        if bar is not None:
            name = f"{measured.model} · {measured.dtype} · {measured.case}"
            groups.setdefault(name, []).append(bar)
    shown = _first_groups(groups)
    if not shown:
        return None
    drawn = {bar.engine for bars in shown.values() for bar in bars}
    seen = {engine: look for engine, look in known.items() if engine in drawn}
    rows = sum(len(bars) + 1 for bars in shown.values())
    with plot_style():
        figure, axes = strip(rows, 0.21)
        _draw(axes, shown, seen)
        legend(figure, seen, hollow=False, failed=False)
        caption = (
            "Medians; the line spans the 10th to the 90th percentile. Further left is faster."
        )
        if len(shown) < len(groups):
            caption += f" The first {len(shown)} of {len(groups)} models are drawn."
        return Plot(svg_from_figure(figure, "latency", caption), caption)


def _bar(measured: Measurement) -> _Bar | None:
    if measured.kind != "latency" or measured.note.startswith("A/A test"):
        return None
    found = [measured.values.get(name) for name in ("p10_us", "median_us", "p90_us")]
    low, median, high = (float(x) / 1e3 if isinstance(x, int | float) else 0.0 for x in found)
    if not 0 < low <= median <= high:
        return None
    return _Bar(measured.engine, low, median, high, measured.note)


def _first_groups(groups: Mapping[str, list[_Bar]]) -> dict[str, list[_Bar]]:
    shown: dict[str, list[_Bar]] = {}
    rows = 0
    for name, bars in groups.items():
        rows += len(bars) + 1
        if shown and rows > 2 * MOST_ROWS:
            break
        shown[name] = bars
    return shown


def _draw(axes: Axes, groups: Mapping[str, Sequence[_Bar]], seen: Mapping[str, Look]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    bars = [bar for group in groups.values() for bar in group]
    axes.set_xscale("log")
    axes.set_xlim(min(bar.p10 for bar in bars) / 1.3, max(bar.p90 for bar in bars) * 1.3)
    names: list[str] = []
    for group, members in groups.items():
        _head(axes, len(names), group)
        names.append("")
        for bar in members:
            row, look = len(names), seen[bar.engine]
            axes.plot([bar.p10, bar.p90], [row, row], color=look.color, lw=2.4, alpha=0.55)
            axes.scatter(bar.median, row, s=34, marker=look.marker, c=look.color, zorder=4)
            note_beside(axes, row, f"{_time(bar.median)} · {shortened(bar.note, 60)}")
            names.append(bar.engine)
    name_rows(axes, names)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("milliseconds a run, log scale")


def _head(axes: Axes, row: int, name: str) -> None:
    axes.text(
        0.005,
        row + 0.08,
        shortened(name, 80),
        transform=axes.get_yaxis_transform(),
        va="center",
        color=INK,
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        zorder=5,
    )


def _time(milliseconds: float) -> str:
    if milliseconds < 1:
        return f"{milliseconds * 1e3:.3g} µs"
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"
