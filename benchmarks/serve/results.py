"""results.json, and results.md drawn from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SERVERS = ("attnport", "attnport again", "tritonserver")


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes both files."""
    text = json.dumps(results, indent=1)
    (folder / "results.json").write_text(text + "\n", "utf-8")
    (folder / "results.md").write_text(_page(results), "utf-8")


def _page(results: dict[str, Any]) -> str:
    machine = results["machine"]
    wanted = ("attnport", "onnxruntime", "numpy")
    versions = ", ".join(
        f"{n} {machine['versions'][n]}" for n in wanted if n in machine["versions"]
    )
    before, after = results["load_average"]
    lines = [
        "# The endpoint against the real tritonserver",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['platform']}, Python "
        f"{machine['python']}, {versions}; tritonserver 2.51 (nvidia-pytriton 0.7.0, python backend "
        f"with the same ONNX Runtime). The machine's load average was {before:.1f} before the run and "
        f"{after:.1f} after it: above {machine['cores']}, others computed on the same cores.",
        "",
        f"`{results['model']}` in float32, batch 1, {results['tokens']} tokens, by bytes over HTTP "
        f"on 127.0.0.1; the load is locust's, on the same cores. {results['rounds']} rounds, in each "
        f"every server for {results['seconds']:g} s in an order that is drawn anew. The second "
        "attnport shows what no difference looks like. Medians over the rounds; in brackets the "
        "smallest and the largest.",
        "",
        *_rates(results["load"]),
        "",
        *_latencies(results["load"]),
        "",
        *_overhead(results["overhead"]),
    ]
    return "\n".join(lines) + "\n"


def _rates(load: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| users | attnport, requests/s | tritonserver | ratio to tritonserver | A/A ratio | failed |",
        "|---|---|---|---|---|---|",
    ]
    for users in sorted({go["users"] for go in load}):
        goes = [go for go in load if go["users"] == users]
        rates = {s: np.array([go[s]["requests_per_second"] for go in goes]) for s in SERVERS}
        both = (rates["attnport"] + rates["attnport again"]) / 2
        failed = sum(go[s]["failures"] for go in goes for s in SERVERS)
        lines.append(
            f"| {users} | {_spread(both)} | {_spread(rates['tritonserver'])} | "
            f"**{_spread(both / rates['tritonserver'], 2)}** | "
            f"{_spread(rates['attnport again'] / rates['attnport'], 2)} | {failed} |"
        )
    return lines


def _latencies(load: list[dict[str, Any]]) -> list[str]:
    lines = ["| users | server | p50 ms | p90 | p95 | p99 |", "|---|---|---|---|---|---|"]
    for users in sorted({go["users"] for go in load}):
        for server in ("attnport", "tritonserver"):
            found = [go[server]["percentiles_ms"] for go in load if go["users"] == users]
            cells = [f"{np.median([one[p] for one in found]):.0f}" for p in found[0]]
            lines.append(f"| {users} | {server} | {' | '.join(cells)} |")
    return lines


def _overhead(overhead: dict[str, Any]) -> list[str]:
    lines = [
        "What the endpoint adds, on y = x: one request after the other on one connection, the client "
        "(Python's http.client) included.",
        "",
        "| tensor | engine.run, p50 µs | through the endpoint, p50 µs (p99) | added, p50 µs |",
        "|---|---|---|---|",
    ]
    for size, found in overhead.items():
        if size == "check_us":
            continue
        alone, through = found["engine_us"], found["endpoint_us"]
        lines.append(
            f"| {size} | {alone['p50']:.0f} | {through['p50']:.0f} ({through['p99']:.0f}) | "
            f"{through['p50'] - alone['p50']:.0f} |"
        )
    check = overhead["check_us"]
    lines += ["", f"Checking the inputs: {check['p50']:.1f} µs (p99 {check['p99']:.1f})."]
    return lines


def _spread(values: np.ndarray, digits: int = 0) -> str:
    low, middle, high = np.min(values), np.median(values), np.max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
