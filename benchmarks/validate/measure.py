"""`make bench-validate`: time and peak memory of a proof on all generated cases.

Each proof runs in a process of its own, so that its peak memory is its own. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnport.validate.machine import this_machine

HERE = Path(__file__).parent
# Model, sizes of its axes, dtype, engines, memory budget in MiB.
PROOFS = (
    ("multi-head-512-8", (), "float32", ("ort-cpu",), 2048),
    ("multi-head-masked-512-8", (), "float32", ("ort-cpu",), 2048),
    ("multi-head-masked-512-8", (), "float16", ("ort-cpu",), 2048),
    ("causal-multi-head-512-8", (), "bfloat16", ("torch-sdpa",), 2048),
    ("multi-head-512-8", ("seq=1:128:2048",), "float32", ("ort-cpu",), 512),
    ("multi-head-4096-32", ("batch=1:1:1", "seq=1:64:2048"), "float32", ("ort-cpu",), 4096),
)
_CHILD = """\
import collections, json, resource, sys, time
from attnport.export.bundle import Bundle
from attnport.models.sources import module_from_source
from attnport.validate.extent import Extent
from attnport.validate.prove import prove
path, engines, budget = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
bundle = Bundle.load(path)
module = module_from_source(bundle.manifest.source)
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, cpu = time.perf_counter(), time.process_time()
report = prove(
    bundle, engines, module=module, extent=Extent(further=True, memory_bytes=budget << 20)
)
parity = [f for f in report.findings if f.check == "parity" and f.case != "coverage"]
sizes = [f.numbers["sizes"] for f in parity if f.case == "largest"]
print(json.dumps({
    "verdict": report.verdict,
    "seconds": time.perf_counter() - start,
    "cpu_seconds": time.process_time() - cpu,
    "idle_mib": idle >> 10,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    "cases": dict(collections.Counter(f.status for f in parity)),
    "left_out": [f.case for f in parity if f.message.startswith("left out")],
    "largest": sizes[0] if sizes else "max",
}))
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=HERE)
    given = arguments.parse_args()
    rows = []
    for model, axes, dtype, engines, budget in PROOFS:
        with tempfile.TemporaryDirectory() as folder:
            bundle = f"{folder}/bundle"
            export = [sys.executable, "-m", "attnport", "export", model, "--dtype", dtype,
                      "--out", bundle, "--case-size", "seq=64"]  # fmt: skip
            for axis in axes:
                export += ["--axis", axis]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
            start = time.perf_counter()
            child = [sys.executable, "-c", _CHILD, bundle, ",".join(engines), str(budget)]
            done = subprocess.run(child, check=False, capture_output=True, text=True)
            if done.returncode:
                found = {"verdict": f"died: {done.stderr.strip().splitlines()[-1:]}"}
            else:
                found = json.loads(done.stdout.splitlines()[-1])
            found |= {"wall_seconds": time.perf_counter() - start}
        rows.append(
            {"model": model, "axes": list(axes), "dtype": dtype, "engines": list(engines),
             "budget_mib": budget, **found}
        )  # fmt: skip
        print(rows[-1], flush=True)
    _write(given.out, rows)


def _write(out: Path, rows: list[dict[str, object]]) -> None:
    machine = this_machine()
    content = {"machine": machine.model_dump(), "proofs": rows}
    (out / "results.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    lines = [
        "# A proof on all generated cases: time and memory",
        "",
        f"`make bench-validate` on {machine.cpu}, {machine.cores} cores, "
        + ", ".join(f"{n} {v}" for n, v in machine.versions.items() if n != "attnport"),
        "",
        "`peak` is that of the whole process, of which `idle` is there before the proof begins: the "
        "libraries, and the module.",
        "",
        "| model | axes | dtype | engines | budget | verdict | cases | left out | largest | seconds "
        "| CPU seconds | idle | peak |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if "seconds" not in r:
            lines.append(
                f"| {r['model']} | | {r['dtype']} | | {r['budget_mib']} MiB | {r['verdict']} |"
            )
            continue
        cases = ", ".join(f"{count} {status}" for status, count in dict(r["cases"]).items())  # type: ignore[call-overload]
        lines.append(
            f"| {r['model']} | {' '.join(r['axes'])} | {r['dtype']} | {', '.join(r['engines'])} | "  # type: ignore[arg-type]
            f"{r['budget_mib']} MiB | {r['verdict']} | {cases} | {len(r['left_out'])} | "  # type: ignore[arg-type]
            f"{r['largest']} | {r['seconds']:.0f} | {r['cpu_seconds']:.0f} | {r['idle_mib']} MiB | "
            f"{r['peak_mib']} MiB |"
        )
    (out / "results.md").write_text("\n".join([*lines, ""]), "utf-8")


if __name__ == "__main__":
    main()
