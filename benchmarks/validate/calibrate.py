"""`make calibrate`: how near good engines come to the parity bound, in runs of many kinds.

A run is one output of one engine that is known to be right, on inputs of one seed. What fixes the
bound's constant is the largest error over bound among them. Nothing is asserted here: a test reads
what this writes, and says whether it still holds.

Paths: float32 and float16 are computed by ONNX Runtime's CPU kernels from the exported graph;
bfloat16, for which it has none, by the same kernels in float32 with every node's result rounded to
bfloat16 (attnport.validate.rounded).
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from attnport.axes import Axis
from attnport.engines.engine import Engine
from attnport.engines.open import open_engine
from attnport.export.bundle import Bundle, Case
from attnport.export.case_numbers import MAGNITUDES
from attnport.export.cases import CasePlan
from attnport.export.export_module import export_module
from attnport.export.module_forms import module_in_dtype
from attnport.export.reference import Reference
from attnport.models.registry import resolve
from attnport.models.spec import ModelSpec
from attnport.validate.bound import C, incomparable, uninformative
from attnport.validate.judgement import judge
from attnport.validate.machine import this_machine
from attnport.validate.properties import check_properties
from attnport.validate.rounded import RoundedEngine

HERE = Path(__file__).parent
DTYPES = ("float32", "float16", "bfloat16")
MODELS = (
    ("multi-head", {"d_model": 64, "num_heads": 4}),
    ("multi-head", {"d_model": 512, "num_heads": 8}),
    ("multi-head-masked", {"d_model": 96, "num_heads": 3, "bias": True}),
    ("causal-multi-head", {"d_model": 128, "num_heads": 2}),
    ("cross-attention", {"d_model": 64, "num_heads": 1, "bias": True}),
    ("encoder-block", {"d_model": 64, "num_heads": 4, "d_ff": 128}),
    ("decoder-block", {"d_model": 64, "num_heads": 2, "d_ff": 96, "norm_first": True}),
)
MASKS = ("visible", "causal", "right-padding", "left-padding", "random", "dead-row", "block")
LONGEST = 48


@dataclass(frozen=True)
class Run:
    """One output of one good engine."""

    dtype: str
    model: str
    magnitude: str
    mask: str
    informative: bool
    ratio: float
    times_eager: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=1100, help="for each dtype")
    arguments.add_argument("--out", type=Path, default=HERE)
    given = arguments.parse_args()
    start = time.perf_counter()
    runs: list[Run] = []
    alarms: collections.Counter[str] = collections.Counter()
    properties: collections.Counter[str] = collections.Counter()
    for dtype in DTYPES:
        each = -(-given.runs // len(MODELS))
        for place, (name, sizes) in enumerate(MODELS):
            with tempfile.TemporaryDirectory() as folder:
                for run, failed, looked_at in runs_of(name, sizes, dtype, each, place, folder):
                    runs += run
                    alarms[dtype] += failed
                    properties[dtype] += looked_at
            print(
                f"{dtype} {name}: {len(runs)} runs, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    write(given.out, runs, alarms, properties, time.perf_counter() - start)


def runs_of(
    name: str, sizes: dict[str, object], dtype: str, count: int, place: int, folder: str
) -> Iterator[tuple[list[Run], int, int]]:
    """So many runs of one model in one dtype, half of them with other weights."""
    spec = resolve(name, sizes)
    for half in range(2):
        module = _seeded(spec, 10 * place + half)
        bundle = _exported(spec, module, dtype, Path(folder) / str(half))
        low = module_in_dtype(module, dtype)
        reference = Reference(low, dtype, bundle.manifest.outputs)
        with _good_engine(bundle) as engine:
            for number in range(-(-count // 2)):
                yield _run(bundle, reference, engine, name, 1000 * place + 500 * half + number)


def _seeded(spec: ModelSpec, seed: int) -> torch.nn.Module:
    """The module with weights of this seed: normal ones, of the size its own initialisation has."""
    module = spec.make()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(generator=generator).mul_(parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def _exported(spec: ModelSpec, module: torch.nn.Module, dtype: str, folder: Path) -> Bundle:
    axes = [
        Axis(n, 1, min(a.opt, 4), 4 if n == "batch" else LONGEST) for n, a in spec.axes.items()
    ]
    small = {axis.name: axis.opt for axis in axes}
    return export_module(
        module, spec.make_args(small), folder, dynamic_shapes=spec.dynamic_shapes, axes=axes,
        dtype=dtype, inputs=spec.roles, max_cases=1,
    )  # fmt: skip


def _good_engine(bundle: Bundle) -> Engine:
    if bundle.dtype == "bfloat16":
        return RoundedEngine(bundle)
    return open_engine(bundle, "ort-cpu", threads=1)


def _run(
    bundle: Bundle, reference: Reference, engine: Engine, model: str, seed: int
) -> tuple[list[Run], int, int]:
    """One set of inputs: its runs, false alarms among runs and properties, properties looked at."""
    draw = np.random.default_rng(seed)
    sizes = {n: int(draw.integers(a.min, a.max + 1)) for n, a in bundle.axes.items()}
    # Half of them ordinary; a quarter saturated.
    shares = {"normal": 0.5, "large": 0.25}
    rest = (1 - sum(shares.values())) / (len(MAGNITUDES) - len(shares))
    magnitude = str(draw.choice(MAGNITUDES, p=[shares.get(m, rest) for m in MAGNITUDES]))
    specs = bundle.manifest.inputs
    masked = any(spec.role == "mask" for spec in specs)
    plan = CasePlan("run", sizes, str(draw.choice(MASKS)) if masked else "none", seed, magnitude)
    inputs = plan.inputs(specs)
    computed = reference.compute(inputs, [s.name for s in specs if s.role == "activation"], seed)
    outputs = engine.run(inputs)
    runs, failed = [], 0
    for spec in bundle.manifest.outputs:
        record = computed.references[spec.name]
        judged = judge(outputs[spec.name], spec, computed.arrays[spec.name], record)
        failed += judged.status == "failed"
        if not incomparable(record) and record.eager is not None and "ratio" in judged.numbers:
            eager = max(record.eager.max, 1e-300)
            runs.append(
                Run(
                    bundle.dtype, model, magnitude, plan.mask,
                    not uninformative(record, spec.dtype), float(judged.numbers["ratio"]),
                    float(judged.numbers["error_max"]) / eager,
                )
            )  # fmt: skip
    if seed % 10:
        return runs, failed, 0
    held = reference.properties(inputs, computed.arrays, specs, bundle.axes, sizes, seed)
    case = Case(_record(plan, computed.references, held), inputs, computed.arrays)
    found = list(check_properties(engine, bundle, case, required=True))
    return runs, failed + sum(f.status == "failed" for f in found), len(found)


def _record(plan: CasePlan, references: dict[str, object], held: tuple[str, ...]):
    from attnport.export.records import CaseRecord

    return CaseRecord(
        name=plan.name, file="", seed=plan.seed, sizes=plan.sizes, mask=plan.mask,
        magnitude=plan.magnitude, references=references, properties=held,
    )  # fmt: skip


def write(
    out: Path, runs: list[Run], alarms: collections.Counter[str],
    properties: collections.Counter[str], seconds: float,
) -> None:  # fmt: skip
    machine = this_machine()
    table = [
        _row(
            dtype,
            magnitude,
            [r for r in runs if r.dtype == dtype and magnitude in (r.magnitude, "all")],
        )
        for dtype in DTYPES
        for magnitude in ("all", *MAGNITUDES)
    ]
    content = {
        "constant": C,
        "paths": {
            "float32": "ort-cpu", "float16": "ort-cpu",
            "bfloat16": "ort-cpu (each node rounded to bfloat16)",
        },
        "false_alarms": {dtype: alarms[dtype] for dtype in DTYPES},
        "properties": {dtype: properties[dtype] for dtype in DTYPES},
        "seconds": round(seconds),
        "table": table,
        "worst": {d: asdict(max((r for r in runs if r.dtype == d), key=lambda r: r.ratio)) for d in DTYPES},
        "machine": machine.model_dump(),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "calibration.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    lines = [
        "# Error over bound of good engines",
        "",
        f"`make calibrate`, {seconds:.0f} s on {machine.cpu}, {machine.cores} cores, "
        + ", ".join(f"{n} {v}" for n, v in machine.versions.items() if n != "attnport"),
        "",
        f"The bound's constant is {C:g}. A good engine is to stay under 0.7 of the bound. float32 and "
        "float16: ONNX Runtime on the CPU, from the exported graph. bfloat16: the same kernels, "
        "each node's result rounded to bfloat16. Uninformative runs decide nothing; they are counted too.",
        "",
        "| dtype | inputs | runs | informative | median | 99% | largest, informative | largest | "
        "largest error / eager's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['dtype']} | {r['magnitude']} | {r['runs']} | {r['informative']} | {r['p50']:.3f} | "
        f"{r['p99']:.3f} | {r['max_informative']:.3f} | {r['max']:.3f} | {r['times_eager_max']:.2f} |"
        for r in table
        if r["runs"]
    ]
    lines += ["", "False alarms: " + ", ".join(
        f"{alarms[d]} in {d} ({properties[d]} properties looked at as well)" for d in DTYPES
    ) + ".", ""]  # fmt: skip
    (out / "calibration.md").write_text("\n".join(lines), "utf-8")


def _row(dtype: str, magnitude: str, runs: list[Run]) -> dict[str, object]:
    ratios = np.array([r.ratio for r in runs] or [0.0])
    return {
        "dtype": dtype,
        "magnitude": magnitude,
        "runs": len(runs),
        "informative": sum(r.informative for r in runs),
        "p50": float(np.percentile(ratios, 50)),
        "p99": float(np.percentile(ratios, 99)),
        "max": float(ratios.max()),
        "max_informative": max((r.ratio for r in runs if r.informative), default=0.0),
        "times_eager_max": max(
            (r.times_eager for r in runs if r.magnitude != "denormal"), default=0
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
