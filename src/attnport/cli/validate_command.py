"""`attnport validate`: engines against the module, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from attnport.cli.options import Engines, known_engines
from attnport.cli.report_files import ReportFiles
from attnport.cli.report_table import show_report
from attnport.cli.screen import progress_bar, say
from attnport.cli.validate_endpoint import (
    BundleOrUrl,
    ServedBundle,
    TokenFile,
    is_url,
    prove_url,
    refuse_engine_options,
    refuse_served_bundle,
)
from attnport.cli.validate_options import (
    Baseline,
    Further,
    Html,
    Json,
    Junit,
    Latency,
    Markdown,
    Memory,
    Own,
    Reproducers,
    Require,
    Seed,
)
from attnport.cli.validate_sharded import (
    RankTimeout,
    is_split,
    prove_folder,
    refuse_for_split,
    refuse_rank_timeout,
)

if TYPE_CHECKING:
    from attnport.engines.plan import EnginePlan
    from attnport.export.bundle import Bundle
    from attnport.validate.extent import OwnCases
    from attnport.validate.gates import Gates
    from attnport.validate.report import Report


def validate(
    bundle: BundleOrUrl,
    engines: Engines = None,
    require: Require = None,
    further: Further = False,
    cases: Own = None,
    memory: Memory = 2048,
    seed: Seed = 0,
    latency: Latency = False,
    baseline: Baseline = None,
    report: Json = None,
    html: Html = None,
    junit: Junit = None,
    markdown: Markdown = None,
    reproducers: Reproducers = None,
    served: ServedBundle = None,
    token_file: TokenFile = None,
    rank_timeout: RankTimeout = None,
) -> None:
    """Prove engines against the module they came from; the exit code is the verdict.

    A plan that lies in the bundle is the one that is judged; others are built first. Without
    --engine, the engines that the requirements name are judged, or ort-cpu.

    \b
    attnport validate build/mh --engine ort-cpu --engine tensorrt-rtx
    attnport validate build/mh --further --report build/report.json --html build/report.html
    attnport validate build/mh --cases my_cases.npz --baseline reports/main.json
    attnport validate http://127.0.0.1:8000 --bundle build/mh   a served endpoint, ours or Triton's
    attnport validate build/mh-2                        a bundle that `attnport shard` split

    A file of requirements holds, for example:

    \b
    engines: [ort-cpu, tensorrt-rtx]
    require:
      parity: [ort-cpu]                        # or: all runnable
      parity_where_available: [tensorrt-rtx]   # where there is a device
      fusion: [tensorrt-rtx]                   # or: where kernels exist
      causal: true
      qkv: true
      kernels: {tensorrt-rtx: 5}
      latency: {ort-cpu: 1.1}                  # times the fastest torch form
      worse_by_percent: 10                     # than --baseline

    In GitHub Actions the summary also goes to the run's page. What a check means:
    attnport explain CHECK. Where it went wrong: attnport bisect.

    Exit codes: 0 proved, 1 a requirement failed, 3 one could not be checked here, 2 bad input.
    """
    files = ReportFiles(report, html, junit, markdown)
    files.require_writable()
    if is_url(bundle):
        refuse_engine_options(
            engine=engines, require=require, further=further, cases=cases, latency=latency
        )
        _finish(prove_url(bundle, served, token_file), files)
    refuse_served_bundle(bundle, served)
    if is_split(bundle):
        refuse_for_split(
            bundle, further=further, cases=cases, latency=latency, baseline=baseline,
            reproducers=reproducers,
        )  # fmt: skip
        gates = _gates(require)
        kinds = known_engines(engines) or list(gates.engines)
        found = prove_folder(bundle, kinds, gates.require, rank_timeout=rank_timeout)
        _finish(found, files)
    refuse_rank_timeout(bundle, rank_timeout)

    from attnport.api import prove
    from attnport.export.bundle import Bundle
    from attnport.validate.extent import Extent

    gates = _gates(require)
    wanted = gates.require
    kinds = known_engines(engines) or list(gates.engines)
    kinds = kinds or ([] if wanted.kinds() else ["ort-cpu"])
    earlier = _baseline(baseline or gates.baseline)
    whole = Bundle.load(bundle)
    if earlier is not None:
        from attnport.validate.baseline import require_same_model

        require_same_model(earlier, whole.name, whole.dtype)
    extent = Extent(
        further=further or gates.cases == "further",
        own=tuple(_own_cases(text) for text in cases or ()),
        memory_bytes=memory << 20,
        seed=seed,
        reproducers=reproducers or _beside(report),
    )
    plans = _plans(whole, (*kinds, *wanted.kinds()))
    with progress_bar(f"proving {whole.name}") as tell:
        found = prove(
            whole, kinds, require=wanted, plans=plans, extent=extent,
            latency=latency or bool(wanted.latency), progress=tell,
        )  # fmt: skip
    if earlier is not None:
        from attnport.validate.baseline import compare

        compared = compare(found, earlier, wanted.worse_by_percent)
        found = found.model_copy(update={"findings": (*found.findings, *compared)})
    _finish(found, files)


def _finish(found: Report, files: ReportFiles) -> NoReturn:
    """Writes what was asked for, shows it, and exits with the verdict."""
    files.write(found)
    show_report(found)
    files.tell()
    raise typer.Exit(found.exit_code)


def _gates(path: Path | None) -> Gates:
    from attnport.validate.gates import Gates, find_gates, load_gates

    if path is not None:
        return load_gates(path)
    found = find_gates(Path.cwd())
    if found is None:
        return Gates()
    gates, file = found
    say(f"requirements: {file}")
    return gates


def _baseline(path: Path | None) -> Report | None:
    from attnport.validate.report import Report

    return None if path is None else Report.load(path)


def _own_cases(text: str) -> OwnCases:
    from attnport.validate.own_cases import cases_from_file, cases_from_generator

    if ":" not in Path(text).name:
        return cases_from_file(text)
    from attnport.models.factories import load_factory

    factory = load_factory(text)
    return cases_from_generator(factory.source, lambda: factory({}))


def _beside(report: Path | None) -> Path | None:
    return None if report is None else report.parent / "reproducers"


def _plans(bundle: Bundle, kinds: Sequence[str]) -> dict[str, EnginePlan]:
    """The plans that lie in the bundle: these are the ones that would be shipped."""
    from attnport.engines.kinds import engine_kind
    from attnport.engines.plan_file import load_plan, plan_path

    found = {}
    for kind in dict.fromkeys(kinds):
        path = plan_path(bundle.path, kind)
        if engine_kind(kind).builds_plan and path.exists():
            found[kind] = load_plan(path)
            say(f"{kind}: judging the plan {path}")
    return found
