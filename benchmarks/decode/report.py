"""Results of decoding as files: JSON for programs, Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = Mapping[str, Any]
QUIET_LOAD = 1.0


def write_report(path: Path, content: Mapping[str, Any]) -> None:
    """Writes results.json, and results.md beside it.

    Args:
        path: Of the JSON.
        content: `setting` and `rows`, see `run.py`.
    """
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(markdown(content), "utf-8")


def markdown(content: Mapping[str, Any]) -> str:
    """The page."""
    setting, rows = content["setting"], content["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    lines = [
        "# Time per token, against past length",
        "",
        f"Written by `make bench-decode` on {content['created']}, {content['seconds']} s: "
        f"{setting['model']}, {setting['threads']} thread of {setting['cpu']} ({setting['cores']} "
        f"cores), {versions}; load average before: {setting['load_before']}.",
        "",
    ]
    if setting["load_before"] > QUIET_LOAD:
        lines += [
            "**Preliminary**: the machine was busy with other work, so the times are too long and "
            "their spread is that of the others' work; ratios within a row are still of one run.",
            "",
        ]
    lines += [*_figures(rows), *_times(rows), *_ratios(rows), *_copied(rows)]
    return "\n".join([*lines, ""])


def _median(row: Row, name: str) -> float:
    return float(row["found"][name]["median_us"])


def _figures(rows: Sequence[Row]) -> list[str]:
    """What was asked, and what came of it."""
    lines = ["| asked | reached |", "|---|---|"]
    worst = max(rows, key=lambda row: row["found"]["static"]["cat_ratio"])
    lines.append(
        "| static no slower than eager PyTorch with a cache (torch.cat) | "
        f"{min(r['found']['static']['cat_ratio'] for r in rows):.2f} to "
        f"{worst['found']['static']['cat_ratio']:.2f} times its time |"
    )
    ratios = [row["found"]["static"]["ratio"][0] for row in rows]
    lines.append(
        "| the same, against PyTorch with caches allocated once | "
        f"{min(ratios):.2f} to {max(ratios):.2f} times its time |"
    )
    if len(rows) > 2:
        fits = {
            name: _slope(rows, name, per)
            for name, per in (
                ("static", "capacity"),
                ("static, two buffers", "capacity"),
                ("torch preallocated", "past"),
                ("torch cat", "past"),
                ("growing, bound", "past"),
            )
        }
        said = ", ".join(f"{name} {slope:.2f}" for name, slope in fits.items())
        lines.append(
            f"| static grows with the attention's arithmetic only | µs per token held: {said} |"
        )
    return [*lines, ""]


def _slope(rows: Sequence[Row], name: str, per: str) -> float:
    """Microseconds that a step takes longer for each row that its attention reads."""
    return float(np.polyfit([r[per] for r in rows], [_median(r, name) for r in rows], 1)[0])


def _times(rows: Sequence[Row]) -> list[str]:
    names = list(rows[0]["found"])
    lines = ["Median milliseconds per token, with 10th and 90th percentile.", ""]
    lines += ["| past | capacity | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for row in rows:
        said = [
            f"{f['median_us'] / 1e3:.2f} [{f['p10_us'] / 1e3:.2f}, {f['p90_us'] / 1e3:.2f}]"
            for f in row["found"].values()
        ]
        lines.append(f"| {row['past']} | {row['capacity']} | {' | '.join(said)} |")
    return [*lines, ""]


def _ratios(rows: Sequence[Row]) -> list[str]:
    names = [name for name in rows[0]["found"] if name != "torch preallocated"]
    lines = [
        'Ratio of medians to PyTorch with caches allocated once, with its 95% interval; "again" is '
        "the A/A test. `apart` is how far the logits of any two lie from each other at most, as a "
        "part of the largest.",
        "",
        "| past | " + " | ".join(names) + " | apart |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        said = ["{:.2f} [{:.2f}, {:.2f}]".format(*row["found"][name]["ratio"]) for name in names]
        lines.append(f"| {row['past']} | {' | '.join(said)} | {row['apart']:.1e} |")
    return [*lines, ""]


def _copied(rows: Sequence[Row]) -> list[str]:
    names = [name for name, found in rows[0]["found"].items() if "copied" in found]
    lines = [
        "Bytes that one step copies between caller and engine: tokens, positions and mask in, logits "
        "out, and caches.",
        "",
        "| past | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for row in rows:
        cells = []
        for name in names:
            moved = row["found"][name]["copied"]
            cells.append(f"{moved['to_engine']} + {moved['from_engine']} + {moved['caches']}")
        lines.append(f"| {row['past']} | {' | '.join(cells)} |")
    return lines
