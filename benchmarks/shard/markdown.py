"""Draws results.md of splitting over ranks from its results.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.shard.arithmetic import DEVICES

_HELD = (
    "model | ranks | weights, MB | held by a rank, MB | of it repeated | sums | sent by a rank per "
    "token, bytes | crossed the loopback per token, bytes | one process, ms | ranks, ms"
)


def markdown(results: Mapping[str, Any]) -> str:
    """The tables; what is measured and what is arithmetic stands in the heads of the columns."""
    machine = results["machine"]
    versions = ", ".join(
        f"{name} {machine['versions'][name]}"
        for name in ("torch", "onnxruntime")
        if name in machine["versions"]
    )
    lines = [
        "# A model on several devices: what was measured, and what is arithmetic",
        "",
        "Written by `python -m benchmarks.shard.run`; the JSON beside it holds every digit.",
        "",
        f"{results['created']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, load {results['load_before']:.1f}; {versions}",
        "",
        "## Bytes and time here",
        "",
        "Ranks are processes of one thread each on this one machine, with gloo between them: their "
        "time says what the sums cost, and nothing about GPUs. What crossed the loopback interface is "
        "of all ranks, with the headers of TCP: N times what one rank sends by arithmetic.",
        "",
        *_held(results["rows"]),
        "",
        "## Time on N devices: arithmetic, nothing of it was run",
        "",
        *_assumed(),
        "",
        *_expected(results["rows"]),
    ]
    return "\n".join(lines) + "\n"


def _held(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    columns = _HELD.split(" | ")
    kinds = ["", "", "measured", "measured", "measured", "counted", "arithmetic"]
    kinds += ["measured", "measured", "measured"]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    yield "| " + " | ".join(f"*{kind}*" if kind else "" for kind in kinds) + " |"
    for row in rows:
        cells = [
            f"{row['model']} {row['dtype']}",
            str(row["ranks"]),
            f"{row['weights_bytes'] / 1e6:.2f}",
            f"{row['held_bytes'] / 1e6:.2f}",
            f"{row['repeated_bytes'] / row['held_bytes']:.1%}",
            str(row["sums"]),
            f"{row['sent_bytes_per_token']:,.0f}",
            _measured(row, "loopback_bytes_per_token", ",.0f"),
            _measured(row, "whole_ms", ".2f"),
            _measured(row, "ms", ".2f"),
        ]
        yield "| " + " | ".join(cells) + " |"


def _measured(row: Mapping[str, Any], name: str, form: str) -> str:
    return format(row[name], form) if name in row else "not run"


def _assumed() -> Iterator[str]:
    yield "Assumed: a ring, in which each rank sends 2·(N-1)/N of every summed tensor; 2 operations"
    yield "for each weight and token, attention's own products left out; the larger of compute and"
    yield "memory counts, and sums overlap with nothing."
    for one in DEVICES:
        yield (
            f"- {one.name}: {one.operations_per_second:.0e} operations/s, "
            f"{one.memory_bytes_per_second:.1e} bytes/s of memory, "
            f"{one.link_bytes_per_second:.1e} bytes/s of link, {one.sum_seconds * 1e6:.0f} µs a sum"
        )


def _expected(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    half = [row for row in rows if row["dtype"] == "float16"]
    names = list(half[0]["expected_seconds"]) if half else []
    yield (
        "| model, float16 | ranks | " + " | ".join(f"{name}: one → N, µs" for name in names) + " |"
    )
    yield "|" + "---|" * (2 + len(names))
    for row in half:
        cells = [
            f"{1e6 * one:.1f} → {1e6 * split:.1f}"
            for one, split in (row["expected_seconds"][name] for name in names)
        ]
        yield f"| {row['model']} | {row['ranks']} | " + " | ".join(cells) + " |"
