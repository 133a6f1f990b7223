"""What the chunks cost and save, as a file for people: asked and reached at the top."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ASKED_RATIO, ASKED_AT = 1.3, (2048, 4096)
Row = Mapping[str, Any]


def write_report(path: Path, content: Mapping[str, Any]) -> None:
    """Writes results.json, and results.md beside it.

    Args:
        path: Of the JSON.
        content: `setting`, `chunks` and `rows`, see `chunks.py`.
    """
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    setting, rows = content["setting"], content["rows"]
    lines = [
        "# Long causal attentions on the CPU, in chunks",
        "",
        f"Written by `make bench-lowering`. One attention, batch 1, D={content['width']} "
        f"H={content['heads']}, fp32; {', '.join(f'{k} {v}' for k, v in setting.items())}. "
        "Ratio of medians to torch SDPA with its 95% interval; A/A is SDPA against itself. Engines "
        "take turns in an order that is shuffled each round, and waiting threads sleep.",
        "",
        *_asked(rows),
        *_times(rows, content["chunks"]),
        *_peaks(rows, content["chunks"]),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", "utf-8")


def _asked(rows: Sequence[Row]) -> list[str]:
    lines = ["| | asked | reached | plain form |", "|---|---|---|---|"]
    for row in rows:
        if row["n"] in ASKED_AT:
            lines.append(
                f"| time over torch SDPA's at {row['n']} tokens, {row['chosen']} chunks | at most "
                f"{ASKED_RATIO} | {row['ratios'][str(row['chosen'])][0]:.2f} | "
                f"{row['ratios']['1'][0]:.2f} |"
            )
    for row in (row for row in rows if row["n"] in ASKED_AT):
        rest, scores = score_fit(row["peak_bytes"])
        found = (row["peak_bytes"]["1"] - rest) / (row["peak_bytes"][str(row["chosen"])] - rest)
        lines.append(
            f"| peak of score memory at {row['n']} tokens, plain over cut | {row['chosen']} | "
            f"{found:.1f} | {scores / 2**20:.0f} MiB |"
        )
    return lines


def score_fit(peaks: Mapping[str, int]) -> tuple[float, float]:
    """What of the peaks is rest, and what is scores: peak = rest + scores / chunks.

    Args:
        peaks: Bytes by number of chunks.

    Returns:
        Both in bytes, by least squares.
    """
    parts = [1 / int(chunks) for chunks in peaks]
    slope, rest = np.polyfit(parts, list(peaks.values()), 1)
    return float(rest), float(slope)


def _times(rows: Sequence[Row], chunks: Sequence[int]) -> list[str]:
    names = ["plain" if c == 1 else f"{c} chunks" for c in chunks]
    lines = ["", "## Time over torch SDPA's", ""]
    lines += ["| N | A/A | " + " | ".join(names) + " | chosen |", "|---" * (len(chunks) + 3) + "|"]
    for row in rows:
        said = [
            "{:.2f} [{:.2f}, {:.2f}]".format(*row["ratios"][k])
            for k in ("same", *map(str, chunks))
        ]
        lines.append(f"| {row['n']} | {' | '.join(said)} | {row['chosen']} |")
    return lines


def _peaks(rows: Sequence[Row], chunks: Sequence[int]) -> list[str]:
    names = ["plain" if c == 1 else f"{c} chunks" for c in chunks]
    lines = [
        "",
        "## Peak memory of a run, MiB",
        "",
        "What a run adds to the resident memory of a process of its own: with every tensor given "
        "back when it is freed / with the session's arena, as the engine runs, which keeps blocks "
        "of doubling size. The last column is a fit of the first: peak = rest + scores / chunks.",
        "",
        "| N | " + " | ".join(names) + " | rest + scores |",
        "|---" * (len(chunks) + 2) + "|",
    ]
    for row in rows:
        pairs = [(row["peak_bytes"][str(c)], row["arena_peak_bytes"][str(c)]) for c in chunks]
        said = [f"{peak / 2**20:.0f} / {arena / 2**20:.0f}" for peak, arena in pairs]
        fit = " + ".join(f"{part / 2**20:.0f}" for part in score_fit(row["peak_bytes"]))
        lines.append(f"| {row['n']} | {' | '.join(said)} | {fit} |")
    return lines
