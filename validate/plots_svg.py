"""A matplotlib figure as SVG that can stand inside an HTML page, the same bytes every time."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1f2328"
FAINT = "#d7dce1"
# Okabe and Ito's palette, which colour-blind people can tell apart ("Color Universal Design",
# 2008), with a grey for its yellow, too pale on paper, and its vermilion kept for what failed.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#5d6770")
MARKERS = ("o", "s", "^", "D", "v", "P")
FAILED = "#D55E00"

_STYLE: dict[Any, object] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and is small
    "svg.hashsalt": "attnport",
    "text.parse_math": False,  # a dollar in a model's name is a dollar
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


@contextmanager
def plot_style() -> Iterator[None]:
    """Matplotlib's settings for a figure of ours, while it is drawn and saved."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def svg_from_figure(figure: Figure, name: str, description: str) -> str:
    """The figure as an `<svg>` element without fixed size.

    Args:
        figure: Drawn within `plot_style`.
        name: An identifier, different for each plot of a page: ids inside begin with it.
        description: What a person who cannot see it is told.
    """
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=nothing)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    label = html.escape(description)
    head, _, rest = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{label}">{rest.strip()}'
