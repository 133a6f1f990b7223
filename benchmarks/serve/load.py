"""Runs locust against one endpoint, and reads what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnport.export.bundle import Bundle
from attnport.serve.oip.exchange import write_request

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


@dataclass(frozen=True)
class Load:
    """What locust measured in one go.

    Attributes:
        requests_per_second: Those that came back right.
        percentiles_ms: Of the latency, as locust rounds it: to two digits above 100 ms, else 1 ms.
        failures: Requests that did not.
    """

    requests_per_second: float
    percentiles_ms: dict[str, float]
    failures: int


def write_load(bundle: Bundle, feeds: dict[str, np.ndarray], model: str, folder: Path) -> Path:
    """Writes the request that every user sends; returns the file that describes it."""
    message = write_request(feeds, bundle.manifest.inputs, bundle.manifest.outputs)
    body = folder / f"{model}.body"
    body.write_bytes(message.body)
    (first,) = feeds.values()
    description = {
        "path": f"/v2/models/{model}/infer",
        "body": str(body),
        "headers": message.headers,
        "answer_bytes": first.nbytes,
    }
    file = folder / f"{model}.json"
    file.write_text(json.dumps(description), "utf-8")
    return file


def run_load(url: str, request: Path, *, users: int, seconds: float) -> Load:
    """Sends a request again and again over as many connections."""
    words = [
        "--headless",
        "--json",
        "--only-summary",
        "--loglevel",
        "ERROR",
        "--stop-timeout",
        "5",
    ]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "locust",
        *words,
        *("-f", str(LOCUSTFILE), "-H", url, "-u", str(users), "-r", str(users)),
        *("-t", f"{seconds:g}s"),
    ]
    environment = {**os.environ, "ATTNPORT_BENCH_REQUEST": str(request)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    try:
        (stats,) = json.loads(done.stdout[done.stdout.index("[") :])
    except ValueError as err:
        raise RuntimeError(f"locust measured nothing: {done.stdout} {done.stderr}") from err
    return _load(stats)


def _load(stats: dict[str, Any]) -> Load:
    times = sorted((float(ms), count) for ms, count in stats["response_times"].items())
    latencies = np.repeat([ms for ms, _ in times], [count for _, count in times])
    good = stats["num_requests"] - stats["num_failures"]
    seconds = stats["last_request_timestamp"] - stats["start_time"]
    percentiles = {f"p{p}": float(np.percentile(latencies, p)) for p in (50, 90, 95, 99)}
    return Load(good / seconds, percentiles, stats["num_failures"])
