"""One engine against every case: parity, properties, repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnport.engines.engine import Engine
from attnport.engines.plan import EnginePlan
from attnport.errors import AttnportError, InternalError
from attnport.export.bundle import Bundle, Case
from attnport.validate.coverage import coverage
from attnport.validate.device_peer import DevicePeer
from attnport.validate.finding import Finding, Subject
from attnport.validate.parity import check_parity
from attnport.validate.placement import check_placement
from attnport.validate.properties import check_properties
from attnport.validate.repeat import check_reopened, check_rerun
from attnport.validate.reproducer import Reproducers
from attnport.validate.stored_case import StoredCase


@dataclass(frozen=True)
class Bench:
    """What engines are judged with.

    Attributes:
        bundle: What they were made from.
        cases: Every case, the shipped ones first.
        left_out: Cases that were not made, with the reason.
        reproducers: Where failures go.
        tell: Called with what is being done.
    """

    bundle: Bundle
    cases: Sequence[StoredCase]
    left_out: dict[str, str]
    reproducers: Reproducers
    tell: Callable[[str], object]


def judge_engine(
    engine: Engine,
    plan: EnginePlan | None,
    bench: Bench,
    *,
    required: bool,
    peer: DevicePeer | None = None,
    reopen: Callable[[], Engine] | None = None,
) -> list[Finding]:
    """Every Finding that needs the engine to run.

    Args:
        engine: An opened engine.
        plan: What it runs, for reproducers.
        bench: The cases, and what comes with them.
        required: Whether parity is required of it.
        peer: PyTorch on the engine's device, whose errors are stated beside its own.
        reopen: Opens it once more, to compare; None to leave that out.
    """
    bundle, subject = bench.bundle, Subject.of(bench.bundle, engine.kind)
    parity: list[Finding] = []
    others: list[Finding] = []
    repeated = _repeated_case(bench.cases)
    for stored in bench.cases:
        bench.tell(f"{engine.kind}: {stored.name}")
        case = stored.load()
        judged = check_parity(engine, bundle, case, required=required, peer=peer)
        parity += _kept(judged, plan, case, bench)
        found = list(check_properties(engine, bundle, case, required=required))
        if stored is repeated:
            found += _repeats(engine, reopen, bundle, case, required)
        others += _kept(found, plan, case, bench)
    parity += [
        subject.finding("parity", name, "not run", why, required=False)
        for name, why in bench.left_out.items()
    ]
    outputs = [spec.name for spec in bundle.manifest.outputs]
    summary = coverage(subject, parity, outputs, bundle.axes.values(), required=required)
    placed = check_placement(engine, subject, required=required)
    return [*parity, summary, *others, *([placed] if placed else [])]


def _kept(
    findings: Sequence[Finding], plan: EnginePlan | None, case: Case, bench: Bench
) -> list[Finding]:
    return [bench.reproducers.keep(finding, plan, case) for finding in findings]


def _repeats(
    engine: Engine,
    reopen: Callable[[], Engine] | None,
    bundle: Bundle,
    case: Case,
    required: bool,
) -> list[Finding]:
    found = [check_rerun(engine, bundle, case, required=required)]
    if reopen is not None:
        try:
            found.append(check_reopened(engine, reopen, bundle, case, required=required))
        except InternalError:
            raise
        except (AttnportError, MemoryError) as err:
            subject = Subject.of(bundle, engine.kind)
            label = f"reopened/{case.record.name}"
            found.append(subject.finding("repeat", label, "failed", str(err), required=required))
    return found


def _repeated_case(cases: Sequence[StoredCase]) -> StoredCase | None:
    """The shipped case of middling size, or the first of all."""
    middling = [case for case in cases if case.name.startswith("between")]
    return next(iter(middling or cases), None)
