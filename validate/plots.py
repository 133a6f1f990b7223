"""The plots people look at: a strip of rows each, so that they read downwards like the table.

They grow in height, not in density, up to `MOST_ROWS`; beyond it the worst rows are drawn and the
caption says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.validate.plots_svg import COLORS, FAILED, FAINT, INK, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 40
_WIDTH_INCHES = 9.6


@dataclass(frozen=True)
class Plot:
    """A plot for the page.

    Attributes:
        svg: An `<svg>` element.
        caption: What it shows, and what it leaves out.
    """

    svg: str
    caption: str


@dataclass(frozen=True)
class Look:
    """How the marks of one engine look: a colour and a shape, both of them its own."""

    color: str
    marker: str


def looks(engines: Sequence[str]) -> dict[str, Look]:
    """A look for each engine, in the order given; names may come more than once."""
    return {
        # The shapes move on by one when the colours begin again, so that no pair comes twice.
        engine: Look(
            COLORS[place % len(COLORS)], MARKERS[(place + place // len(COLORS)) % len(MARKERS)]
        )
        for place, engine in enumerate(dict.fromkeys(engines))
    }


def strip(rows: int, row_inches: float) -> tuple[Figure, Axes]:
    """An empty strip of so many rows, the first one on top; drawn within `plot_style`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_INCHES, rows * row_inches + 0.85), layout="constrained")
    axes = figure.add_subplot()
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(axis="x", which="major", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [shortened(name, 44) for name in names])
    for row in range(1, len(names)):
        axes.axhline(row - 0.5, color=FAINT, lw=0.4)


def note_beside(axes: Axes, row: float, text: str, *, bold: bool = False) -> None:
    """Writes on the right of a row."""
    axes.text(
        1.015,
        row,
        text,
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=7.5,
        color=INK,
        fontweight="bold" if bold else "normal",
    )


def legend(figure: Figure, seen: dict[str, Look], *, hollow: bool, failed: bool) -> None:
    """Names the engines' marks above the strip, and the two marks that mean the same for all."""
    from matplotlib.lines import Line2D

    def key(label: str, marker: str, face: str, edge: str, size: float) -> Line2D:
        return Line2D(
            [], [], ls="", label=label, marker=marker, mfc=face, mec=edge, markersize=size
        )

    keys = [key(name, look.marker, look.color, "white", 6.5) for name, look in seen.items()]
    if hollow:
        keys.append(key("hollow: decides nothing", "o", "white", INK, 5.5))
    if failed:
        keys.append(key("failed", "X", FAILED, INK, 8))
    figure.legend(handles=keys, loc="outside upper left", ncols=len(keys), handletextpad=0.2)


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
