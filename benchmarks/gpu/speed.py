"""The steps of the road that measure time: latency between events, and whole calls."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.gpu.common import (
    CALLS,
    ENGINES,
    Answer,
    bundles_of,
    has_exporter,
    milliseconds,
    not_run,
)

_LATENCY_VALUES = (
    "median_us", "p10_us", "p90_us", "p99_us", "ratio", "ratio_low", "ratio_high", "reference",
    "copies_in_us", "copies_out_us", "rotated_sets",
)  # fmt: skip


def latency_step(out: Path) -> Answer:
    """Latencies that can be quoted: each engine and torch form against the fastest torch form."""
    from attnport.engines.build import build_engine
    from attnport.engines.kinds import availability
    from attnport.validate.latency import measure_latency

    kinds = [kind for kind in ENGINES[:-1] if not availability(kind)]
    bundles = bundles_of(out)
    if not kinds or not bundles:
        return not_run(availability("tensorrt-rtx") or "there is no bundle")
    rows: list[Answer] = []
    for bundle in bundles[:2]:
        for kind in kinds:
            build_engine(bundle, kind)
        maker = "attnport.models.sources:module_from_source" if has_exporter() else None
        found = measure_latency(bundle, kinds, module_maker=maker, peers=True, seconds=4.0)
        for one in found.measurements:
            values = {name: one.values.get(name) for name in _LATENCY_VALUES}
            rows.append({"model": bundle.name, "engine": one.engine, **values, "note": one.note})
        rows += [
            {"model": bundle.name, "engine": kind, "note": f"not run: {why}"}
            for kind, why in found.left_out.items()
        ]
    measured = {row["engine"] for row in rows if "median_us" in row}
    missing = [kind for kind in kinds if kind not in measured]
    if missing:
        return {"status": "failed", "reason": f"{', '.join(missing)} not measured", "rows": rows}
    return {"status": "passed", "rows": rows}


def speed_step(out: Path) -> Answer:
    """Calls of `run`, copies and all: of one thread, with and without CUDA graphs, and of four."""
    from concurrent.futures import ThreadPoolExecutor

    from attnport.engines.build import build_engine
    from attnport.engines.kinds import availability
    from attnport.engines.open import open_engine
    from attnport.errors import AttnportError

    kinds = [kind for kind in ENGINES[:-1] if not availability(kind)]
    bundles = bundles_of(out)
    if not kinds or not bundles:
        return not_run(availability("tensorrt-rtx") or "there is no bundle")
    rows = []
    for bundle in bundles[:2]:
        feeds = bundle.load_case(bundle.manifest.cases[-1].name).inputs
        for kind in kinds:
            for graphs in (False, True) if kind.startswith("tensorrt") else (False,):
                row: Answer = {"model": bundle.name, "engine": kind, "CUDA graphs": graphs}
                rows.append(row)
                try:
                    build_engine(bundle, kind)
                    with (
                        open_engine(bundle, kind, cuda_graphs=graphs) as engine,
                        ThreadPoolExecutor(4) as pool,
                    ):
                        row["ms"] = milliseconds(lambda: engine.run(feeds), lambda: None, CALLS)  # noqa: B023
                        start = time.perf_counter()
                        list(pool.map(lambda _: engine.run(feeds), range(CALLS)))  # noqa: B023
                        row["calls/s, 4 threads"] = f"{CALLS / (time.perf_counter() - start):.0f}"
                except AttnportError as err:
                    row["ms"] = f"not run: {err}"
    return {"status": "passed", "rows": rows}
