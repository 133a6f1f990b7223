"""Error against bound: a row for each model and dtype, a mark for each case and engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnport.validate.finding import Finding, Status
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
from attnport.validate.plots_svg import FAILED, INK, plot_style, svg_from_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Errors this far below the bound, zero among them, are drawn at the left edge.
_LEAST_RATIO = 1e-3


class _Point(NamedTuple):
    """A parity Finding; `ratio` is infinite where the output was not finite."""

    engine: str
    case: str
    ratio: float
    status: Status


def error_plot(findings: Iterable[Finding], known: Mapping[str, Look]) -> Plot | None:
    """Draws error over bound of every case that has one; None if there is none.

    Args:
        findings: Those of a report.
        known: The look of each engine.
    """
    rows: dict[str, list[_Point]] = {}
    for finding in findings:
        point = _point(finding)
        if point is not None:
            rows.setdefault(f"{finding.model} · {finding.dtype}", []).append(point)
    if not rows:
        return None
    shown = _worst_rows(rows)
    drawn = {point.engine for points in shown.values() for point in points}
    seen = {engine: look for engine, look in known.items() if engine in drawn}
    statuses = {point.status for points in shown.values() for point in points}
    with plot_style():
        figure, axes = strip(len(shown), 0.34)
        _draw(axes, shown, seen)
        legend(figure, seen, hollow="not run" in statuses, failed="failed" in statuses)
        caption = _caption(shown, len(rows))
        return Plot(svg_from_figure(figure, "errors", caption), caption)


def _point(finding: Finding) -> _Point | None:
    ratio = finding.numbers.get("ratio")
    if finding.check != "parity" or ratio is None or isinstance(ratio, list):
        return None
    value = float(ratio)  # a ratio that is not finite stands as a word that float understands
    return _Point(
        finding.engine, finding.case, math.inf if math.isnan(value) else value, finding.status
    )


def _worst_rows(rows: dict[str, list[_Point]]) -> dict[str, list[_Point]]:
    """Every row where they fit, else the worst ones, in the order of the report."""
    worst = sorted(rows, key=lambda name: -max(point.ratio for point in rows[name]))[:MOST_ROWS]
    return {name: points for name, points in rows.items() if name in worst}


def _caption(shown: Mapping[str, Sequence[_Point]], total: int) -> str:
    cases = sum(map(len, shown.values()))
    said = f"{cases} outputs of cases. Right of the line the error is larger than its bound. "
    said += "Beside each row: its worst case."
    if total > len(shown):
        said += f" The {len(shown)} worst of {total} rows are drawn; the table below has all."
    return said


def _draw(axes: Axes, rows: Mapping[str, Sequence[_Point]], seen: Mapping[str, Look]) -> None:
    finite = [p.ratio for points in rows.values() for p in points if math.isfinite(p.ratio)]
    low = min([0.05, *(max(ratio, _LEAST_RATIO) / 1.5 for ratio in finite)])
    high = max([4.0, *(ratio * 4 for ratio in finite)])
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.axvspan(1, high, color=FAILED, alpha=0.08, lw=0)
    axes.axvline(1, color=INK, lw=1.2)
    lanes = {engine: (place + 1) / (len(seen) + 1) - 0.5 for place, engine in enumerate(seen)}
    for row, points in enumerate(rows.values()):
        for engine, look in seen.items():
            mine = [point for point in points if point.engine == engine]
            _scatter(axes, row + 0.8 * lanes[engine], mine, look, (low * 1.05, high / 1.15))
        worst = max(points, key=lambda point: (point.status == "failed", point.ratio))
        value = f"{worst.ratio:.2g}" if math.isfinite(worst.ratio) else "not finite"
        text = f"{value} · {shortened(worst.case, 30)}"
        note_beside(axes, row, text, bold=worst.status == "failed")
    name_rows(axes, list(rows))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("error ÷ bound, log scale")
    axes.annotate("bound", (1, 1), xycoords=("data", "axes fraction"), xytext=(-4, 3),
                  textcoords="offset points", ha="right", fontsize=7.5)  # fmt: skip


def _scatter(
    axes: Axes, y: float, points: Sequence[_Point], look: Look, limits: tuple[float, float]
) -> None:
    """The marks of one engine in one row, those beyond the limits at the limits."""
    for status in ("not run", "passed", "failed"):
        xs = [min(max(p.ratio, limits[0]), limits[1]) for p in points if p.status == status]
        if status == "failed":
            axes.scatter(xs, [y] * len(xs), s=60, marker="X", c=FAILED, ec=INK, lw=0.8, zorder=5)
        else:
            hollow = status == "not run"
            axes.scatter(
                xs,
                [y] * len(xs),
                s=22 if hollow else 28,
                marker=look.marker,
                facecolor="white" if hollow else look.color,
                edgecolor=look.color if hollow else "white",
                linewidth=1.0 if hollow else 0.5,
                zorder=3 if hollow else 4,
            )
